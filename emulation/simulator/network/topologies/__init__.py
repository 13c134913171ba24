"""Network topologies, grouped by what they are built of."""
