"""Chooses among options: the effect of each on the cluster, scored by a model or a rule."""
