"""Faults that an emulated OCS shows on demand, and the socket by which they are asked for.

The control socket takes one JSON object a line and answers each with one. Keys are the
fields of ``Faults`` (present ones replace what was), and ``report`` (see ``ControlSocket``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from testbed.errors import BadInput


@dataclass
class Faults:
    """What goes wrong. The last three are used up by the next command that changes something.

    ``refuse_ports``: locked, refuse every circuit. ``fail_ports``: mirrors stuck, circuits
    fail. ``repeat_pages``: long replies come as whole replies one after another.
    ``refuse_next``: the words to refuse with. ``cut``: drop the connection ``"before"`` or
    ``"after"`` doing it. ``stall_s``: do it so much later; ``acknowledge``: and keep
    saying that it is in progress.
    """

    refuse_ports: list[int] = field(default_factory=list)
    fail_ports: list[int] = field(default_factory=list)
    repeat_pages: bool = False
    acknowledge: bool = False
    refuse_next: str = ""
    cut: str = ""
    stall_s: float = 0.0

    def update(self, wanted: dict[str, Any]) -> None:
        """Replace fields; ``BadInput`` names the first that is not one or has a wrong type."""
        known = {f.name: getattr(self, f.name) for f in fields(self)}
        for key, value in wanted.items():
            if key not in known:
                raise BadInput(f"no fault is called {key!r}: known are {', '.join(known)}")
            if not _fits(value, known[key]):
                raise BadInput(f"{key} cannot be {value!r}: like {known[key]!r}")
        if wanted.get("cut", "") not in ("", "before", "after"):
            raise BadInput(f"cut cannot be {wanted['cut']!r}: 'before', 'after' or ''")
        for key, value in wanted.items():
            setattr(self, key, value)

    def take(self, name: str) -> Any:
        """The value of a fault that happens once; it is over after that."""
        value = getattr(self, name)
        setattr(self, name, type(value)())
        return value


def _fits(value: object, like: object) -> bool:
    if isinstance(like, list):
        return isinstance(value, list) and all(type(item) is int for item in value)
    if isinstance(like, float):
        return type(value) in (int, float)
    return type(value) is type(like)


class ControlSocket:
    """Serves a ``Faults`` on a Unix socket.

    ``applied`` is called after each change. ``report`` is given the text of
    ``{"report": "*C EQPT: 1.1.1: mirror stuck"}``, to be said as an autonomous message.
    """

    def __init__(
        self,
        faults: Faults,
        applied: Callable[[], Awaitable[None]],
        report: Callable[[str], None],
    ) -> None:
        self._faults, self._applied, self._report = faults, applied, report
        self._server: asyncio.Server | None = None

    async def open(self, path: Path) -> None:
        """Listen at ``path``, replacing a socket that nobody serves any more."""
        await asyncio.to_thread(path.unlink, missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, path)
        await asyncio.to_thread(path.chmod, 0o600)

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                answer = await self._answer(line)
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            # The other end went, or its line was longer than a line may be.
            return
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            wanted = json.loads(line)
            if not isinstance(wanted, dict):
                raise BadInput("expected a JSON object")
            report = wanted.pop("report", None)
            self._faults.update(wanted)
        except (BadInput, ValueError) as error:
            return {"ok": False, "error": str(error)}
        await self._applied()
        if isinstance(report, str):
            self._report(report)
        return {"ok": True, "faults": asdict(self._faults)}
