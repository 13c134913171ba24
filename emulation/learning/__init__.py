"""Learning policies in the simulators: environments, networks, training, export.

Needs the extra ``learn``; what is learned is an ONNX file that needs none of it.
"""

from patchlight.console.shared import RESEARCH, Command

_HERE = "patchlight.emulation.learning.commands"
COMMANDS = {
    "env": Command(
        f"{_HERE}.env", "Show and check learning environments.", RESEARCH
    ),
    "policy train": Command(
        f"{_HERE}.learn", "Train a policy and write it as an ONNX file."
    ),
}
