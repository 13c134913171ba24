"""The simulator beside packets, in random labs with random jobs."""
