"""The optical cluster of PAC-ML: training steps on it, and jobs that come, are blocked or go."""
