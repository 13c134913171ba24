"""Flows on networks of 4 to 65,536 nodes, which share links max-min fair."""
