"""What the REST API takes in: checked by pydantic, turned into values of the lab model."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from testbed.jobs import JobSpec


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ReconfigurationRequest(_Strict):
    """Cross-connects by OCS: ``"1-7"`` both ways, ``"1>7"`` one way.

    They are added to what is there; with ``only`` they replace the whole map. Ports under
    ``disconnect`` lose the cross-connects they have.
    """

    maps: dict[str, list[str]] = {}
    disconnect: dict[str, list[int]] = {}
    only: bool = False
    why: str = "asked by the user"


class JobRequest(_Strict):
    """One job; see ``testbed.jobs.JobSpec`` for what the fields mean."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,40}$")
    iterations: int = Field(ge=1)
    gradient_bytes: int = Field(ge=4)
    compute_s: dict[str, float]
    workers: int = Field(default=0, ge=0)
    hosts: list[str] = []
    seed: int = 0

    def spec(self) -> JobSpec:
        """The job as a value."""
        return JobSpec(**{**self.model_dump(), "hosts": tuple(self.hosts)})


class GangRequest(_Strict):
    """Jobs that start together, and whether they are regrouped first."""

    jobs: list[JobRequest]
    topology: Literal["keep", "regroup"] = "keep"


class RegroupRequest(_Strict):
    """Running jobs, by id, each to be brought under one packet switch."""

    jobs: list[str]
