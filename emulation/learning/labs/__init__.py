"""Learns how many workers a job gets, in random labs, from simulated alternatives."""
