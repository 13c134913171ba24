"""Topology engineering: from traffic to circuits. Pure functions of matrices, sites and maps.

Matrices are square NumPy arrays of traffic, a row for each sender; what their unit is, is the
caller's. Every formula has its source beside it.
"""
