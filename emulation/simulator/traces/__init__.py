"""Readers of public traces of GPU clusters: which jobs came, when, how big and how long.

``read_trace`` gives the jobs; ``load_trace`` says too what was sorted and left out. Known are the
Philly trace as CSV and as its own JSON, Helios' job logs, and Alibaba's of 2020 (PAI), 2023 (openb)
and 2026 (spot GPUs), packed by gzip or not. ``laws`` draws
jobs like those of the last two, without a file.
"""

from patchlight.emulation.simulator.traces.files import (
    FORMATS,
    LAWS,
    TraceLaw,
    drawn_trace,
    is_drawn,
    load_trace,
    read_trace,
)
from patchlight.emulation.simulator.traces.model import Trace, TraceFileError, TraceJob

__all__ = [
    "FORMATS",
    "LAWS",
    "Trace",
    "TraceFileError",
    "TraceJob",
    "TraceLaw",
    "drawn_trace",
    "is_drawn",
    "load_trace",
    "read_trace",
]
