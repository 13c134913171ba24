"""The optical cluster of PAC-ML: training steps on it, and a loss network of jobs."""
