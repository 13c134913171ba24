"""Learning policies in the simulators: environments, networks, training, export.

Needs the extra ``learn``; what is learned is an ONNX file that needs none of it.
"""

from patchlight.console.shared import RESEARCH, Command

_HERE = "patchlight.emulation.learning.commands"
COMMANDS = {
    "env": Command(f"{_HERE}.env", "List, check and compare learning environments.", RESEARCH),
    "policy train": Command(f"{_HERE}.learn", "Train a policy as a configuration says."),
    "policy study": Command(f"{_HERE}.learn", "Train configurations with several seeds."),
    "policy export": Command(f"{_HERE}.learn", "Write a trained policy as an ONNX file."),
}
