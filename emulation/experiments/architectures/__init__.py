"""Compares network architectures under one job mix: time, links, optics, power, cost."""
