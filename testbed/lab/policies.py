"""Who decides in a lab, and when light follows its jobs: what files, commands and users say."""

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from patchlight.testbed.errors import BadInput

PolicyKind = Literal["partition", "placement", "order", "topology", "elasticity"]
KINDS: tuple[PolicyKind, ...] = get_args(PolicyKind)


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """What is said of a lab's policies at one place; ``None`` is what is not said there.

    The policies are written as ``patchlight.controller.policies.registry.find`` reads them; an
    empty one is none at all. One that has not answered after ``deadline_s`` is passed over. With
    ``defragment`` light moves under running jobs, when a job has ended and every
    ``defragment_every_s``, where that is predicted to gain more than ``minimum_gain_s`` over all
    jobs together. ``BadInput`` for a value that is out of bounds.
    """

    placement: str | None = None
    order: str | None = None
    topology: str | None = None
    partition: str | None = None
    elasticity: str | None = None
    deadline_s: float | None = None
    defragment: bool | None = None
    defragment_every_s: float | None = None
    minimum_gain_s: float | None = None

    def __post_init__(self) -> None:
        for name, what in (
            ("deadline_s", "a policy's deadline is"),
            ("defragment_every_s", "light is looked at every"),
        ):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise BadInput(f"{what} {value} s: expected more than 0 s")
        gain_s = self.minimum_gain_s
        if gain_s is not None and not 0 <= gain_s < math.inf:
            raise BadInput(f"the least gain is {gain_s} s: expected 0 s or more")

    def of(self, kind: PolicyKind) -> str | None:
        """The policy of a kind."""
        return cast(str | None, getattr(self, kind))

    @property
    def said(self) -> dict[str, Any]:
        """What is said here, by field."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in named.items() if value is not None}

    def over(self, other: "PolicyChoice") -> "PolicyChoice":
        """What is said here, and what the other says where nothing is."""
        return replace(other, **self.said)

    def beside(self, folder: Path) -> "PolicyChoice":
        """The same; policy files by their full path, from this folder on."""
        named: dict[str, Any] = {
            kind: full_path(name, folder) for kind in KINDS if (name := self.of(kind))
        }
        return replace(self, **named)


NOTHING_SAID = PolicyChoice()


def full_path(policy: str, folder: Path) -> str:
    """A policy file by its full path, from a folder on; any other policy as it is written."""
    kind, colon, named = policy.partition(":")
    if kind not in KINDS:
        kind, colon, named = "", "", policy
    head, dot, rest = named.partition(".py")
    if not dot:
        head, dot, rest = named.partition(".onnx")
    return f"{kind}{colon}{(folder / (head + dot)).absolute()}{rest}" if dot else policy
