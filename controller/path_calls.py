"""The part of the controller's client that is about paths of light."""

from abc import ABC, abstractmethod
from typing import Any

Answer = dict[str, Any]


class PathCalls(ABC):
    """What can be asked and told of paths; ``ControllerClient`` makes the calls."""

    @abstractmethod
    def _call(self, method: str, path: str, body: Any = None, **query: Any) -> Answer: ...

    def paths(self) -> Answer:
        """The ``networks`` of paths, the ``scheduler``, and the ``paths`` used or waited for."""
        return self._call("GET", "/paths")

    def want_path(self, source: str, destination: str, nbytes: float, **options: Any) -> Answer:
        """Ask for a path between two hosts for a flow of so many bytes.

        ``deadline_s`` (from now), ``collective``, ``round`` and ``lease_s`` as in the API. Its
        ``state`` is ``granted`` or ``waiting``.
        """
        body = {"source": source, "destination": destination, "bytes": nbytes}
        return self._call("POST", "/paths", body | options)

    def path(self, number: int, wait_s: float = 0.0) -> Answer:
        """One path; one that waits, once it waits no more, or after ``wait_s`` (30 at most)."""
        return self._call("GET", f"/paths/{number}", wait_s=wait_s)

    def release_path(self, number: int) -> Answer:
        """Give a path back, or leave off waiting."""
        return self._call("DELETE", f"/paths/{number}")
