"""A testbed for clusters whose network can be rewired with light.

The public interface: what this module names stays. ``patchlight.testbed`` is the lab as data,
``patchlight.controller`` decides and commands, ``patchlight.agents`` are its hands on the
servers, ``patchlight.emulation`` has labs made of software, and ``patchlight.cli`` is the command.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from patchlight.controller.client import ControllerClient
    from patchlight.controller.policies.contract import (
        OrderPolicy,
        PartitionPolicy,
        PlacementPolicy,
        TopologyPolicy,
    )
    from patchlight.emulation.lab.emulated_lab import EmulatedLab
    from patchlight.emulation.simulator.cluster import Policies, TwoLevel, queue_jobs, simulate
    from patchlight.emulation.simulator.traces import read_trace
    from patchlight.testbed.errors import BadInput, OutcomeUnknown, PatchlightError
    from patchlight.testbed.graphs import ComputationGraph, builtin_graph, read_graph
    from patchlight.testbed.jobs import JobSpec
    from patchlight.testbed.lab import Lab
    from patchlight.testbed.labfile.reader import builtin_lab, read_lab
    from patchlight.testbed.portmap import CrossConnect, PortMap

# Loaded when first asked for: reading a lab file needs neither NumPy nor a web framework.
_PUBLIC = {
    "BadInput": "testbed.errors",
    "ComputationGraph": "testbed.graphs",
    "ControllerClient": "controller.client",
    "CrossConnect": "testbed.portmap",
    "EmulatedLab": "emulation.lab.emulated_lab",
    "JobSpec": "testbed.jobs",
    "Lab": "testbed.lab",
    "OrderPolicy": "controller.policies.contract",
    "OutcomeUnknown": "testbed.errors",
    "PartitionPolicy": "controller.policies.contract",
    "PatchlightError": "testbed.errors",
    "PlacementPolicy": "controller.policies.contract",
    "Policies": "emulation.simulator.cluster",
    "PortMap": "testbed.portmap",
    "TopologyPolicy": "controller.policies.contract",
    "TwoLevel": "emulation.simulator.cluster",
    "builtin_graph": "testbed.graphs",
    "builtin_lab": "testbed.labfile.reader",
    "queue_jobs": "emulation.simulator.cluster",
    "read_graph": "testbed.graphs",
    "read_lab": "testbed.labfile.reader",
    "read_trace": "emulation.simulator.traces",
    "simulate": "emulation.simulator.cluster",
}

__all__ = [
    "BadInput",
    "ComputationGraph",
    "ControllerClient",
    "CrossConnect",
    "EmulatedLab",
    "JobSpec",
    "Lab",
    "OrderPolicy",
    "OutcomeUnknown",
    "PartitionPolicy",
    "PatchlightError",
    "PlacementPolicy",
    "Policies",
    "PortMap",
    "TopologyPolicy",
    "TwoLevel",
    "builtin_graph",
    "builtin_lab",
    "queue_jobs",
    "read_graph",
    "read_lab",
    "read_trace",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
