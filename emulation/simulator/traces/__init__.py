"""Readers of public traces of GPU clusters: arrival, size and duration of each job.

Known are the Philly trace as CSV and as its own JSON, Helios' job logs, and Alibaba's of 2020
(PAI), 2023 (openb) and 2026 (spot GPUs), packed by gzip or not.
"""
