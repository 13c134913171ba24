"""Compares the simulator with packets, in random labs with random jobs."""
