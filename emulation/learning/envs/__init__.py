"""Gymnasium environments of the simulator."""
