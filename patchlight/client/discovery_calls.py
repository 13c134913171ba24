"""The part of the controller's client that is about looking for the wiring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from patchlight.client.calls import Answer, Call, Calls, call

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.discovery import Search, SearchPlan


class DiscoveryCalls(Calls):
    """What can be asked and told of a search; ``ControllerClient`` makes the calls."""

    @call
    def discover(
        self,
        ports: Mapping[str, Sequence[int]] | None = None,
        *,
        listen_s: float = 2.0,
        every_port: bool = False,
    ) -> Call[Search]:
        """Begin to look what hangs on these ports by OCS, or on all; how far it is, as below.

        ``listen_s``: each round. ``every_port``: also once all ends of the lab are found.
        """
        begun = yield from self._discover(ports, listen_s, every_port, dry_run=False)
        return cast("Search", begun)

    @call
    def preview_discovery(
        self,
        ports: Mapping[str, Sequence[int]] | None = None,
        *,
        listen_s: float = 2.0,
        every_port: bool = False,
    ) -> Call[SearchPlan]:
        """What that would look at (``ports``), which ``circuits`` go dark meanwhile, ``takes_s``
        in how many ``rounds``, and what speaks against it (``objections``)."""
        plan = yield from self._discover(ports, listen_s, every_port, dry_run=True)
        return cast("SearchPlan", plan)

    def _discover(
        self,
        ports: Mapping[str, Sequence[int]] | None,
        listen_s: float,
        every_port: bool,
        *,
        dry_run: bool,
    ) -> Call[Answer]:
        named = {ocs: list(numbers) for ocs, numbers in (ports or {}).items()}
        body = {"ports": named, "listen_s": listen_s, "every_port": every_port}
        return (yield from self._call("POST", "/discovery", body | {"dry_run": dry_run}))

    @call
    def discovery(self, step: int = 0, wait_s: float = 0.0) -> Call[Search]:
        """How far the search is: its ``state``, ``rounds_done``, ``rounds_left``, ``left_s``; the
        ``wiring`` once it is ``done``, else a ``message``.

        With ``wait_s`` (30 at most), one under way is waited for until it is beyond this ``step``.
        """
        answer = yield from self._call("GET", "/discovery", step=step, wait_s=wait_s)
        return cast("Search", answer)

    @call
    def stop_discovery(self) -> Call[Search]:
        """Break the search off; all circuits are as before then, also those that a search left
        away from their places which was cut short."""
        return cast("Search", (yield from self._call("DELETE", "/discovery")))
