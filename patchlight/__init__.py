"""A testbed for clusters whose network can be rewired optically.

The public interface: what this module names stays. ``patchlight.testbed`` is the lab as data,
``patchlight.controller`` decides and commands, ``patchlight.agents`` are its hands on the
servers, ``patchlight.emulation`` has labs made of software, and ``patchlight.cli`` is the command.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from patchlight.client.client import ControllerClient
    from patchlight.controller.policies.contract import (
        ElasticityPolicy,
        OrderPolicy,
        PartitionPolicy,
        PlacementPolicy,
        TopologyPolicy,
    )
    from patchlight.emulation.lab.emulated_lab import EmulatedLab
    from patchlight.emulation.simulator.cluster import (
        Policies,
        TwoLevel,
        queue_jobs,
        simulate,
    )
    from patchlight.emulation.simulator.traces.files import read_trace
    from patchlight.testbed.errors import (
        BadInput,
        OutcomeUnknown,
        PatchlightError,
    )
    from patchlight.testbed.generate.builder import LabBuilder
    from patchlight.testbed.graphs import (
        ComputationGraph,
        builtin_graph,
        read_graph,
    )
    from patchlight.testbed.jobs import JobSpec
    from patchlight.testbed.lab.model import Lab
    from patchlight.testbed.lab.portmap import CrossConnect, PortMap
    from patchlight.testbed.labfile.reader import builtin_lab, read_lab
    from patchlight.testbed.labfile.writer import write_lab

# Loaded when first used: reading a lab file needs neither NumPy nor a web framework.
_NAMES_IN = {
    "client.client": "ControllerClient",
    "controller.policies.contract": (
        "ElasticityPolicy OrderPolicy PartitionPolicy PlacementPolicy TopologyPolicy"
    ),
    "emulation.lab.emulated_lab": "EmulatedLab",
    "emulation.simulator.cluster": "Policies TwoLevel queue_jobs simulate",
    "emulation.simulator.traces.files": "read_trace",
    "testbed.generate.builder": "LabBuilder",
    "testbed.errors": "BadInput OutcomeUnknown PatchlightError",
    "testbed.graphs": "ComputationGraph builtin_graph read_graph",
    "testbed.jobs": "JobSpec",
    "testbed.lab.model": "Lab",
    "testbed.labfile.reader": "builtin_lab read_lab",
    "testbed.labfile.writer": "write_lab",
    "testbed.lab.portmap": "CrossConnect PortMap",
}
_PUBLIC = {
    name: module
    for module, names in _NAMES_IN.items()
    for name in names.split()
}

__all__ = ["BadInput", "ComputationGraph", "ControllerClient", "CrossConnect"]
__all__ += ["ElasticityPolicy", "EmulatedLab"]
__all__ += [
    "JobSpec",
    "Lab",
    "LabBuilder",
    "OrderPolicy",
    "OutcomeUnknown",
    "PartitionPolicy",
]
__all__ += ["PatchlightError"]
__all__ += [
    "PlacementPolicy",
    "Policies",
    "PortMap",
    "TopologyPolicy",
    "TwoLevel",
    "builtin_graph",
]
__all__ += [
    "builtin_lab",
    "queue_jobs",
    "read_graph",
    "read_lab",
    "read_trace",
    "simulate",
]
__all__ += ["write_lab"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
