"""Experiments from published papers, run here and compared with their figures."""

from patchlight.console.shared import RESEARCH, Command

_HERE = "patchlight.emulation.experiments.commands"
COMMANDS = {
    "experiment": Command(
        f"{_HERE}.group", "Run a paper's experiment.", RESEARCH
    )
}
