"""The errors of an agent, each with the HTTP status of its answer, and its log."""

import logging

from patchlight.testbed.errors import PatchlightError

log = logging.getLogger("patchlight.agent")


class AgentError(PatchlightError):
    """The agent could not do it; nothing is left half done."""

    status = 500


class BadRequest(AgentError):
    """The request makes no sense for this server."""

    status = 422


class Forbidden(AgentError):
    """The lab does not allow what the worker wants."""

    status = 403


class NotHere(AgentError):
    """This server has no such worker, GPU or NIC."""

    status = 404


class Conflict(AgentError):
    """The state of a worker, GPU or NIC does not allow it. ``iteration``: where a worker is for
    which a hold came too late."""

    status = 409

    def __init__(
        self, message: str, *, hint: str | None = None, iteration: int | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.iteration = iteration


class NicError(AgentError):
    """A NIC could not be read, given away or taken back."""


class NicGone(NicError):
    """The NIC is neither here nor in the worker's namespace."""


class NicDark(NicError):
    """A worker's NIC has not come back after its light moved."""

    status = 503


class GpuError(AgentError):
    """A GPU could not be read."""


class LaunchError(AgentError):
    """A worker could not be started."""
