"""Somebody's own program as a training job: what can be said of it, with the bounds of it all."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

RESERVED_VARIABLES = frozenset(
    [
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
        *("MASTER_ADDR", "MASTER_PORT", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"),
        *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    ]
)
"""Variables that an agent sets, besides all that begin with ``PATCHLIGHT_``."""

AbsolutePath = Annotated[str, Field(pattern=r"^/[^\x00]*$", max_length=4096)]
_Text = Annotated[str, Field(pattern=r"^[^\x00]*$", max_length=32_768)]
_Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]
_Image = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$", max_length=255)]


class _Value(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Mount(_Value):
    """A file or folder of the server, and where a container sees it."""

    source: AbsolutePath
    target: AbsolutePath
    read_only: bool = True


class CommandTask(_Value):
    """Somebody's own program, the same on every rank.

    ``image`` is the container's (``None``: that of Patchlight's workers). ``working_directory``
    is the worker's own folder unless it is given. ``hold`` says how the program is paused while
    light moves: ``protocol``, by the control socket that it opens; ``freeze``, by stopping its
    processes and packets; ``auto``, by the socket once it is there.
    """

    trainer: Literal["command"]
    command: Annotated[list[_Text], Field(min_length=1, max_length=1000)]
    image: _Image | None = None
    environment: Annotated[dict[_Variable, _Text], Field(max_length=1000)] = {}
    mounts: Annotated[list[Mount], Field(max_length=64)] = []
    shared_memory_bytes: Annotated[int, Field(ge=2**20, le=2**40)] | None = None
    working_directory: AbsolutePath | None = None
    hold: Literal["protocol", "freeze", "auto"] = "auto"

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
