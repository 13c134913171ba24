"""Readers of public traces of GPU clusters: arrival, size and duration of each job.

Known are the Philly trace as CSV and as its own JSON, Helios' job logs, Alibaba's of 2020 (PAI),
2023 (openb), 2025 (DLRM) and 2026 (spot GPUs), logs in the Standard Workload Format and those of
Slurm's sacct, packed by gzip or not.
"""
