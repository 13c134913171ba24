"""Labs made of software, the simulators, learning, and the papers' experiments."""
