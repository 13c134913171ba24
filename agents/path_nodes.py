"""Manages the NICs of a server that have bounds for optical paths. Bounds are saved before use; the
next agent reads them and grants nothing until earlier grants have expired."""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from patchlight.agents.errors import BadRequest, Conflict, log
from patchlight.agents.nics.status import nic_of
from patchlight.agents.nics.tuners import Tuner
from patchlight.agents.path_node import LitPath, PathNode, PathNotGranted
from patchlight.agents.training.control import PATHS_SOCKET, socket_in
from patchlight.testbed.errors import PatchlightError, in_words
from patchlight.testbed.lab.model import Nic, Server
from patchlight.testbed.lab.spectrum import Channel
from patchlight.testbed.linux.files import private_folder, remove_half_written
from patchlight.testbed.paths.agreement import Lit
from patchlight.testbed.wire.agent_status import PathBounds, PathNodeStatus
from patchlight.testbed.wire.worker_api import SyntheticTask, WorkerSpec

_LINE_BYTES = 4096
_AGAIN_S = 0.05
_DRAINS_S = 1.0


class PathSocket:
    """A Unix socket in a worker's folder. The worker sends a line with the ranks that it sends
    ``to`` and that send to it (``before``), and a line when it is ``done``. The replies come when
    its path is set up and when its transmitter is off. Closing the connection ends the path; a path
    whose lease or bounds end is requested again. ``node`` returns the path node of its NIC, or
    raises ``Conflict``; ``tuning_s``: how long a transmitter is off after a grant."""

    def __init__(
        self,
        folder: Path,
        node: Callable[[], PathNode],
        tuning_s: float,
    ) -> None:
        self._folder = folder
        self._node = node
        self._tuning_s = tuning_s
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen for the worker, replacing an earlier agent's socket."""
        with contextlib.suppress(FileNotFoundError):
            (self._folder / PATHS_SOCKET).unlink()
        with socket_in(self._folder, PATHS_SOCKET) as path:
            self._server = await asyncio.start_unix_server(
                self._serve, path, limit=_LINE_BYTES
            )
        try:
            owner = self._folder.stat()
            os.lchown(self._folder / PATHS_SOCKET, owner.st_uid, owner.st_gid)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async def say(words: dict[str, Any]) -> None:
            writer.write(json.dumps(words).encode() + b"\n")
            await writer.drain()

        try:
            wanted = json.loads(await reader.readline())
            to = int(wanted["to"])
            before = int(wanted["before"])
            done = asyncio.create_task(reader.readline())
            try:
                await self._light(
                    to,
                    before,
                    float(wanted["patience_s"]),
                    done,
                    say,
                )
            finally:
                done.cancel()
        except PatchlightError as error:
            await say({"error": error.message})
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            ArithmeticError,
            RecursionError,
        ):
            pass  # The worker closed the connection or sent something else.
        finally:
            writer.close()

    async def _light(
        self,
        to: int,
        before: int,
        patience_s: float,
        done: asyncio.Task[bytes],
        say: Any,
    ) -> None:
        is_told = False
        while not done.done():
            ends_s = time.monotonic() + patience_s
            while True:
                try:
                    node = self._node()
                    break
                except Conflict:  # the NIC has no bounds now
                    if time.monotonic() > ends_s:
                        raise
                await asyncio.sleep(_AGAIN_S)
            try:
                async with node.path(to, patience_s) as path:
                    await asyncio.sleep(self._tuning_s)
                    if not is_told:
                        await say({"channel": path.channel})
                        is_told = True
                    await asyncio.wait(
                        {done}, timeout=path.until_s - time.monotonic()
                    )
                    if done.done():
                        await node.drained(before, _DRAINS_S)
            except PathNotGranted:
                if (
                    node is self._node()
                ):  # otherwise it has other bounds by now
                    raise
        with contextlib.suppress(OSError):
            await say({"ok": True})


@dataclass(frozen=True)
class _Bound:
    bounds: PathBounds
    node: PathNode

    def status(self, nic: str) -> PathNodeStatus:
        bounds = self.bounds
        doing = self.node.doing
        status = PathNodeStatus(
            nic=nic,
            epoch=bounds.epoch,
            job=bounds.job,
            number=bounds.number,
            state="quiet" if self.node.ready_s else "dark",
        )
        if doing is not None:
            status.state = "asks"
            status.destination = doing.destination
        if isinstance(doing, Lit):
            status.state = "sends"
            status.channel = bounds.channels[doing.channel]
        return status


class PathNodes:
    """A server's NICs that have bounds. ``tuner`` tunes transmitters; without it bounds are
    refused. A NIC without bounds sends on the channel of the lab file."""

    def __init__(
        self,
        server: Server,
        folder: Path,
        tuner: Tuner | None,
    ) -> None:
        self._server = server
        self._folder = folder
        self._tuner = tuner
        self._nodes: dict[str, _Bound] = {}
        self._withdrawn: dict[str, int] = {}
        self._sockets: dict[str, PathSocket] = {}

    def open(self) -> None:
        """Restore the bounds that an earlier agent saved."""
        if self._tuner is None or not self._folder.exists():
            return
        remove_half_written(self._folder)
        for file in self._folder.glob("*.json"):
            try:
                self._start(
                    nic_of(self._server, file.stem),
                    PathBounds.model_validate_json(file.read_text()),
                )
            except (ValidationError, PatchlightError) as error:
                log.warning("bounds of paths in %s: %s", file, in_words(error))

    def close(self) -> None:
        """Switch transmitters off; bounds stay on disk for the next agent."""
        for socket in self._sockets.values():
            socket.close()
        self._sockets.clear()
        for bound in self._nodes.values():
            bound.node.close()
        self._nodes.clear()
        if self._tuner is not None:
            self._tuner.close()

    def bind(self, nic_name: str, bounds: PathBounds) -> PathNodeStatus:
        """Give a NIC bounds. Repeating the call has no effect. ``Conflict`` for bounds of an ended
        epoch, or for different bounds of the present one."""
        nic = nic_of(self._server, nic_name)
        if (
            self._tuner is None
            or nic.transceiver is None
            or nic.transceiver.tunable is None
        ):
            raise BadRequest(
                f"{nic_name} of {self._server.name} cannot use optical paths: its transceiver "
                f"cannot be tuned",
                hint="it needs a 'tunable' transceiver in the lab file, and an emulated lab or a "
                "module whose memory optoe shows in sysfs",
            )
        known = self._nodes.get(nic_name)
        if known is not None and known.bounds == bounds:
            return known.status(nic_name)
        last = max(
            self._withdrawn.get(nic_name, 0),
            known.bounds.epoch if known else 0,
        )
        if bounds.epoch <= last:
            raise Conflict(
                f"{nic_name} is at epoch {last}, but the bounds are of epoch {bounds.epoch}"
            )
        quiet_us = 0
        if known is not None:
            known.node.close()
            quiet_us = known.bounds.lease_us + known.bounds.margin_us
        private_folder(self._folder)
        fresh = self._folder / f"{nic_name}.new"
        fresh.touch(mode=0o600)
        fresh.write_text(bounds.model_dump_json())
        os.replace(fresh, self._record(nic_name))
        try:
            self._start(nic, bounds, quiet_us)
        except PatchlightError:
            self._nodes.pop(nic_name, None)
            self._record(nic_name).unlink()
            raise
        return self._nodes[nic_name].status(nic_name)

    def withdraw(self, nic_name: str, epoch: int) -> None:
        """Stop granting paths under bounds of this epoch or an earlier one."""
        nic = nic_of(self._server, nic_name)
        self._withdrawn[nic_name] = max(
            epoch, self._withdrawn.get(nic_name, 0)
        )
        known = self._nodes.get(nic_name)
        if known is None or known.bounds.epoch > epoch:
            return
        del self._nodes[nic_name]
        known.node.close()
        self._record(nic_name).unlink(missing_ok=True)
        if nic.transceiver is not None:
            self._tune(nic, str(nic.transceiver.channel))

    async def serve(self, spec: WorkerSpec, folder: Path) -> None:
        """Let a worker request paths in its folder, if its task uses them."""
        if isinstance(spec.task, SyntheticTask) and spec.task.paths:
            transceiver = nic_of(self._server, spec.nic).transceiver
            tuning_s = transceiver.tuning_time_s if transceiver else 0.0
            socket = PathSocket(folder, partial(self.node, spec.nic), tuning_s)
            await socket.open()
            self._sockets[spec.id] = socket

    def serve_no_more(self, spec: WorkerSpec) -> None:
        """Release the paths of a worker that has ended."""
        if socket := self._sockets.pop(spec.id, None):
            socket.close()

    def node(self, nic_name: str) -> PathNode:
        """The path node of a NIC; ``Conflict`` if it has no bounds."""
        if nic_name not in self._nodes:
            raise Conflict(
                f"{nic_name} of {self._server.name} has no bounds for paths"
            )
        return self._nodes[nic_name].node

    def status(self) -> list[PathNodeStatus]:
        """All NICs that have bounds."""
        return [bound.status(nic) for nic, bound in self._nodes.items()]

    def _start(
        self,
        nic: Nic,
        bounds: PathBounds,
        quiet_us: int = 0,
    ) -> None:
        def light(path: LitPath | None) -> None:
            self._tune(nic, bounds.channels[path.channel] if path else None)

        key = bytes.fromhex(bounds.key)
        node = PathNode(
            bounds.number,
            bounds.bounds,
            bounds.addresses,
            key,
            light,
            quiet_us=quiet_us,
        )
        node.open()
        self._nodes[nic.name] = _Bound(bounds, node)

    def _tune(self, nic: Nic, channel: str | None) -> None:
        assert self._tuner is not None
        if channel is None:
            self._tuner.darken(nic)
        else:
            self._tuner.tune(nic, Channel.parse(channel))

    def _record(self, nic_name: str) -> Path:
        return self._folder / f"{nic_name}.json"
