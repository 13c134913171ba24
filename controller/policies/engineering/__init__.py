"""Topology engineering: from traffic to circuits, as pure functions of matrices, sites and maps."""
