"""Handlers of the speaker's requests: one method for each operation of the protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from patchlight.controller.openflow.flowtable import FlowEntry
from patchlight.controller.openflow.protocol import OPERATIONS, VERSION, Message, ProtocolError
from patchlight.controller.openflow.speaker.switch_registry import SwitchRegistry
from patchlight.testbed.errors import PatchlightError


class EntriesRefused(PatchlightError):
    """A switch, or OpenFlow itself, refused some flow entries; the others are in place."""

    def __init__(self, message: str, failed: list[Message], result: Message) -> None:
        super().__init__(message)
        self.failed = failed
        self.result = result


class Handlers:
    """Answers requests about the switches of ``registry``; ``about`` is what ``hello`` adds."""

    def __init__(self, registry: SwitchRegistry, about: Message) -> None:
        self._registry = registry
        self._about = about
        self._handlers: dict[str, Callable[[Message], Any]] = {
            name: getattr(self, "_" + name) for name in OPERATIONS
        }

    def __call__(self, request: Message) -> Any:
        """The result of one request, or a ``PatchlightError``."""
        if request.get("v") != VERSION:
            raise ProtocolError(
                f"protocol version {request.get('v')!r}: this speaker speaks {VERSION}",
                hint="the controller and its speaker must be of the same Patchlight",
            )
        operation = self._handlers.get(str(request.get("op")))
        if operation is None:
            raise ProtocolError(
                f"there is no operation {request.get('op')!r}: expected {', '.join(self._handlers)}"
            )
        return operation(request)

    def _hello(self, request: Message) -> Message:
        return {"protocol": VERSION, "datapaths": sorted(self._registry.declared), **self._about}

    def _switches(self, request: Message) -> list[Message]:
        return self._registry.switches()

    def _describe(self, request: Message) -> Message:
        return self._registry.switch(_datapath_id(request)).description()

    def _ports(self, request: Message) -> list[Message]:
        return self._registry.switch(_datapath_id(request)).ports_now()

    def _counters(self, request: Message) -> list[Message]:
        return self._registry.counters()

    def _read_flows(self, request: Message) -> Message:
        entries = self._registry.switch(_datapath_id(request)).read_flows()
        return {"flows": [entry.to_json() for entry in entries]}

    def _apply(self, request: Message) -> Message:
        switch = self._registry.switch(_datapath_id(request))
        removes = [FlowEntry.from_json(item) for item in request.get("removes", [])]
        adds = [FlowEntry.from_json(item) for item in request.get("adds", [])]
        for entry in (*removes, *adds):
            if not entry.is_ours:
                raise ProtocolError(f"not an entry of Patchlight's, so not touched: {entry}")
        refused = switch.apply(removes, adds)
        failed = {id(entry) for entry, _ in refused}
        result = {
            "removed": sum(id(entry) not in failed for entry in removes),
            "added": sum(id(entry) not in failed for entry in adds),
        }
        if refused:
            raise EntriesRefused(
                f"switch {switch.id:#x} refused {len(refused)} of {len(removes) + len(adds)} "
                f"flow entries; the first: {refused[0][0]}: {refused[0][1]}",
                [{"entry": entry.to_json(), "error": text} for entry, text in refused],
                result,
            )
        return result


def _datapath_id(request: Message) -> int:
    value = request.get("datapath_id")
    if not isinstance(value, int):
        raise ProtocolError(f"{request.get('op')} needs a datapath_id, not {value!r}")
    return value
