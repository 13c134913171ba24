"""Learned policies that weigh options: what each would make of the cluster, scored by a model.

Every decision is a list of candidate answers (``listing``). A model sees the cluster as a graph,
the job as another, and what each answer would lead to (``observation``), and gives each a score
(``learned``). Sizes are open: the same model decides in any lab.
"""
