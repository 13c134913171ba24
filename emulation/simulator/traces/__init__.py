"""Readers of public traces of GPU clusters: which jobs came, when, how big and how long.

``read_trace`` gives the jobs; ``load_trace`` says too what was sorted and left out. Known are the
Philly trace as CSV and as its own JSON, Helios' job logs, and Alibaba's PAI 2020.
"""

from patchlight.emulation.simulator.traces.files import FORMATS, load_trace, read_trace
from patchlight.emulation.simulator.traces.model import Trace, TraceFileError, TraceJob

__all__ = ["FORMATS", "Trace", "TraceFileError", "TraceJob", "load_trace", "read_trace"]
