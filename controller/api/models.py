"""What the REST API takes in: checked by pydantic, turned into values of the lab model."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from patchlight.testbed.jobs import JobSpec, checked_specs


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ChangeRequest(_Strict):
    """What every change may be asked with.

    ``dry_run``: answer what would change, and change nothing. ``spare_jobs``: refuse where a
    running job's traffic rides on what changes. ``planned_from``: refuse unless the maps are
    still those that a dry run gave this for.
    """

    why: str = ""
    dry_run: bool = False
    spare_jobs: bool = False
    planned_from: str = ""


class ReconfigurationRequest(ChangeRequest):
    """Cross-connects by OCS: ``"1-7"`` both ways, ``"1>7"`` one way.

    They are added to what is there; with ``only`` they replace the whole map. Ports under
    ``disconnect`` lose the cross-connects they have.
    """

    maps: dict[str, list[str]] = {}
    disconnect: dict[str, list[int]] = {}
    only: bool = False


class RepairRequest(ChangeRequest):
    """Circuit switches to bring back to their committed maps; all if none are named."""

    ocs: list[str] = []


class BaselinesRequest(_Strict):
    """Circuit switches whose power is to be the baseline from now on; all if none are named."""

    ocs: list[str] = []


class PresentMapsRequest(BaselinesRequest):
    """Circuit switches whose present maps are to be saved, or committed; all if none are named."""

    why: str = ""


class StopRequest(_Strict):
    """Why the stop button is pressed or cleared."""

    why: str = ""


class UnlockRequest(StopRequest):
    """Ports of one OCS whose locks are to go."""

    ocs: str
    ports: list[int] = Field(min_length=1)


class LockRequest(UnlockRequest):
    """Ports of one OCS to lock for everybody, or with ``keep`` for all but who asks."""

    keep: bool = False


class GangRequest(_Strict):
    """Jobs that start together, and whether they are regrouped first.

    Without ``topology`` the lab's topology policy decides.
    """

    jobs: list[JobSpec]
    topology: Literal["keep", "regroup"] | None = None

    @field_validator("jobs", mode="before")
    @classmethod
    def _checked(cls, jobs: object) -> list[JobSpec]:
        # Raises our own error, in our own words, and not pydantic's.
        return checked_specs(jobs)


class RegroupRequest(_Strict):
    """Running jobs, by id, each to be brought under one packet switch."""

    jobs: list[str]
