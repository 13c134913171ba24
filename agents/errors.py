"""Defines the agent's errors, each with an HTTP status and a log level."""

import logging

from patchlight.testbed.errors import PatchlightError

log = logging.getLogger("patchlight.agent")


class AgentError(PatchlightError):
    """The agent failed; no change was left unfinished."""

    status = 500


class BadRequest(AgentError):
    """The request is not valid on this server."""

    status = 422


class Forbidden(AgentError):
    """The lab does not allow the worker to have this."""

    status = 403


class NotHere(AgentError):
    """This server has no worker, GPU or NIC of that name."""

    status = 404


class Conflict(AgentError):
    """The worker, GPU or NIC is in the wrong state. ``iteration``: the worker's, for a late
    hold."""

    status = 409

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        iteration: int | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.iteration = iteration


class NicError(AgentError):
    """A NIC could not be read, moved to a worker or moved back."""


class NicGone(NicError):
    """The NIC is neither in the server's namespace nor in the worker's."""


class NicDark(NicError):
    """A worker's NIC did not come back after the circuits changed."""

    status = 503


class GpuError(AgentError):
    """A GPU could not be read."""


class GpuSilent(GpuError):
    """A GPU did not answer in time: it or its machine may be busy."""


class LaunchError(AgentError):
    """A worker could not be started."""
