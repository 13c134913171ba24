"""PAC-ML's experiment: how far to partition jobs that have to meet a deadline.

Parsonson, Shabka, Ottino, Zervas: "Partitioning Distributed Compute Jobs with Reinforcement
Learning and Graph Neural Networks", arXiv 2301.13799. Ours: the loss network of
``emulation.simulator.ramp`` under plain rules for the degree and under a roll-out that looks ahead.
"""
