"""Learning partition policies in the simulator: environments, networks, training, export.

Needs the extra ``learn``; what is learned is an ONNX file that needs none of it.
"""

from patchlight.emulation.learning.envs.registry import register_all

# ``gymnasium.make("patchlight/Placement-v0")`` works once this package is imported.
register_all()
