"""Policies that weigh options: what each would make of the cluster, scored by a model or a rule."""
