"""Learning partition policies in the simulator: environments, networks, training, export.

Needs the extra ``learn``; what is learned is an ONNX file that needs none of it.
"""

from gymnasium import register

_ENVS = f"{__name__}.envs"

# Made by ``gymnasium.make("patchlight/Placement-v0")`` once this package is imported.
register("patchlight/Placement-v0", entry_point=f"{_ENVS}.queued:PlacementEnv")
register("patchlight/Schedule-v0", entry_point=f"{_ENVS}.queued:ScheduleEnv")
register(
    "patchlight/RampPartition-v0",
    entry_point=f"{_ENVS}.ramp_partition:RampPartitionEnv",
    vector_entry_point=f"{_ENVS}.ramp_partition:RampPartitionVectorEnv",
)
