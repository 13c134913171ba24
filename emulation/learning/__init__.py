"""Learning partition policies in the simulator: environments, networks, training, export.

Needs the extra ``learn``; what is learned is an ONNX file that needs none of it.
"""

from gymnasium import register

# Made by ``gymnasium.make("patchlight/Placement-v0")`` once this package is imported.
_ENVIRONMENTS = {
    "patchlight/Placement-v0": "emulation.learning.envs.placement:PlacementEnv",
    "patchlight/RampPartition-v0": "emulation.learning.envs.ramp_partition:RampPartitionEnv",
    "patchlight/Schedule-v0": "emulation.learning.envs.schedule:ScheduleEnv",
}
_MANY = {
    "patchlight/RampPartition-v0": "emulation.learning.envs.ramp_lanes:RampPartitionVectorEnv",
}
for _name, _place in _ENVIRONMENTS.items():
    register(_name, entry_point=_place, vector_entry_point=_MANY.get(_name))
