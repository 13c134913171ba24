"""Simulators of clusters, networks and RAMP, for policies and job traces."""

from patchlight.console.shared import RESEARCH, Command

_HERE = "patchlight.emulation.simulator.commands"
COMMANDS = {
    "simulate": Command(
        f"{_HERE}.simulate",
        "Simulate a cluster with a queue under a job trace.",
        RESEARCH,
    ),
    "graph": Command(
        f"{_HERE}.graph",
        "Show, draw and measure computation graphs.",
        RESEARCH,
    ),
    "policy compare": Command(
        f"{_HERE}.compare", "Compare policies in many random labs."
    ),
}
