"""Somebody's own program as a training job: what can be said of it, with the bounds of it all."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

RESERVED_VARIABLES = frozenset(
    [
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
        *("MASTER_ADDR", "MASTER_PORT", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"),
        *("NCCL_IB_HCA", "NCCL_IB_ADDR_RANGE"),
        *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    ]
)
"""Variables that an agent sets, besides all that begin with ``PATCHLIGHT_``."""

LONGEST_TEXT = 4096
MOST_WORDS, MOST_MOUNTS = 1000, 64

AbsolutePath = Annotated[str, Field(pattern=r"^/[^\x00]*$", max_length=LONGEST_TEXT)]
Line = Annotated[str, Field(pattern=r"^[^\x00]*$", max_length=LONGEST_TEXT)]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=255)]
Image = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$", max_length=255)]
SharedMemory = Annotated[int, Field(ge=2**20, le=2**40)]
"""In bytes."""
MemoryLimit = Annotated[int, Field(ge=16 * 2**20, le=2**44)]
"""In bytes."""
CpuLimit = Annotated[float, Field(ge=0.01, le=4096, allow_inf_nan=False)]
"""In CPUs, also parts of one."""
HowHeld = Literal["auto", "protocol", "freeze"]


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the server, and where a container sees it."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    source: AbsolutePath
    target: AbsolutePath
    read_only: bool = True


class CommandTask(BaseModel):
    """Somebody's own program, the same on every rank.

    ``image`` is the container's (``None``: that of Patchlight's workers). ``working_directory``
    is the worker's own folder unless it is given. ``hold`` says how the program is paused while
    light moves: ``protocol``, by the control socket that it opens; ``freeze``, by stopping its
    processes and packets; ``auto``, by the socket once it is there. ``window_bytes`` limits what
    its peers may send ahead over TCP, on links whose rate is scaled.
    """

    model_config = ConfigDict(extra="forbid")

    trainer: Literal["command"]
    command: Annotated[list[Line], Field(min_length=1, max_length=MOST_WORDS)]
    image: Image | None = None
    environment: Annotated[dict[Variable, Line], Field(max_length=MOST_WORDS)] = {}
    mounts: Annotated[list[Mount], Field(max_length=MOST_MOUNTS)] = []
    shared_memory_bytes: SharedMemory | None = None
    working_directory: AbsolutePath | None = None
    hold: HowHeld = "auto"
    window_bytes: Annotated[int, Field(ge=4096)] | None = None

    @field_validator("environment")
    @classmethod
    def _leaves_ours_alone(cls, environment: dict[str, str]) -> dict[str, str]:
        taken = [
            name
            for name in environment
            if name in RESERVED_VARIABLES or name.startswith("PATCHLIGHT_")
        ]
        if taken:
            raise ValueError(
                f"{', '.join(taken)} cannot be given: Patchlight sets it for each rank"
            )
        return environment
