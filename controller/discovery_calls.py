"""The part of the controller's client that is about looking for the wiring."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

Answer = dict[str, Any]


class DiscoveryCalls(ABC):
    """What can be asked and told of a search; ``ControllerClient`` makes the calls."""

    @abstractmethod
    def _call(self, method: str, path: str, body: Any = None, **query: Any) -> Answer: ...

    def discover(
        self,
        ports: Mapping[str, Sequence[int]] | None = None,
        *,
        listen_s: float = 2.0,
        every_port: bool = False,
    ) -> Answer:
        """Begin to look what hangs on these ports by OCS, or on all; how far it is, as below.

        ``listen_s``: each round. ``every_port``: also once all ends of the lab are found.
        """
        return self._discover(ports, listen_s, every_port, dry_run=False)

    def preview_discovery(
        self,
        ports: Mapping[str, Sequence[int]] | None = None,
        *,
        listen_s: float = 2.0,
        every_port: bool = False,
    ) -> Answer:
        """What that would look at (``ports``), which ``circuits`` go dark meanwhile, ``takes_s``
        in how many ``rounds``, and what speaks against it (``objections``)."""
        return self._discover(ports, listen_s, every_port, dry_run=True)

    def _discover(
        self,
        ports: Mapping[str, Sequence[int]] | None,
        listen_s: float,
        every_port: bool,
        *,
        dry_run: bool,
    ) -> Answer:
        named = {ocs: list(numbers) for ocs, numbers in (ports or {}).items()}
        body = {"ports": named, "listen_s": listen_s, "every_port": every_port}
        return self._call("POST", "/discovery", body | {"dry_run": dry_run})

    def discovery(self) -> Answer:
        """How far the search is: its ``state``, ``rounds_done``, ``rounds_left``, ``left_s``; the
        ``wiring`` once it is ``done``, else a ``message``."""
        return self._call("GET", "/discovery")

    def stop_discovery(self) -> Answer:
        """Break the search off; all circuits are as before then, also those that a search left
        away from their places which was cut short."""
        return self._call("DELETE", "/discovery")
