"""Experiments of published papers, run here beside their figures."""

from patchlight.console.shared import RESEARCH, Command

_HERE = "patchlight.emulation.experiments.commands"
COMMANDS = {"experiment": Command(f"{_HERE}.group", "Run a paper's experiment.", RESEARCH)}
