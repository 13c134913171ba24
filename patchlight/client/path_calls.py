"""The part of the controller's client that is about paths of light."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from patchlight.client.calls import Call, Calls, call

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.paths import PathShape, PathsShape


class PathCalls(Calls):
    """What can be asked and told of paths; ``ControllerClient`` makes the calls."""

    @call
    def paths(self) -> Call[PathsShape]:
        """The ``networks`` of paths, the ``scheduler``, and the ``paths`` used or waited for."""
        return cast("PathsShape", (yield from self._call("GET", "/paths")))

    @call
    def want_path(
        self, /, source: str, destination: str, nbytes: float, **options: Any
    ) -> Call[PathShape]:
        """Ask for a path between two hosts for a flow of so many bytes.

        ``deadline_s`` (from now), ``collective``, ``round`` and ``lease_s`` as in the API. Its
        ``state`` is ``granted`` or ``waiting``.
        """
        body = {"source": source, "destination": destination, "bytes": nbytes}
        return cast("PathShape", (yield from self._call("POST", "/paths", body | options)))

    @call
    def path(self, number: int, wait_s: float = 0.0) -> Call[PathShape]:
        """One path; one that waits, once it waits no more, or after ``wait_s`` (30 at most)."""
        return cast("PathShape", (yield from self._call("GET", f"/paths/{number}", wait_s=wait_s)))

    @call
    def release_path(self, number: int) -> Call[PathShape]:
        """Give a path back, or leave off waiting."""
        return cast("PathShape", (yield from self._call("DELETE", f"/paths/{number}")))
