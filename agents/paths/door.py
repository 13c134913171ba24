"""Where one worker asks its agent for paths: a Unix socket in the worker's folder.

The worker sends a line with whom it sends ``to`` and who sends to it (``before``), as numbers of
its ring, and is answered once its light is there. It says when it is ``done``, and is answered once
it is dark. Whoever hangs up needs its path no more.
"""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from patchlight.agents.errors import Conflict
from patchlight.agents.paths.node import NoPath, PathNode
from patchlight.agents.training.agent_paths import SOCKET
from patchlight.testbed.errors import PatchlightError

_LINE_BYTES = 4096
_AGAIN_S = 0.05
_DRAINS_S = 1.0


class PathDoor:
    """Serves one worker; ``node`` is that of its NIC, and raises ``Conflict`` while there is none.

    A path whose lease is over, or that came to its end with the bounds, is asked for again for as
    long as the worker needs it. ``tuning_s`` is how long a transmitter is dark after its grant.
    """

    def __init__(self, folder: Path, node: Callable[[], PathNode], tuning_s: float) -> None:
        self._folder, self._node, self._tuning_s = folder, node, tuning_s
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Be there for the worker, in place of an earlier agent's."""
        with contextlib.suppress(FileNotFoundError):
            (self._folder / SOCKET).unlink()
        # Through /proc, because a Unix socket's path may have only 107 characters.
        folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY)
        try:
            path = f"/proc/self/fd/{folder}/{SOCKET}"
            self._server = await asyncio.start_unix_server(self._serve, path, limit=_LINE_BYTES)
            owner = self._folder.stat()
            os.lchown(self._folder / SOCKET, owner.st_uid, owner.st_gid)
        finally:
            os.close(folder)

    def close(self) -> None:
        """Take no more requests."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def say(words: dict[str, Any]) -> None:
            writer.write(json.dumps(words).encode() + b"\n")
            await writer.drain()

        try:
            wanted = json.loads(await reader.readline())
            to, before = int(wanted["to"]), int(wanted["before"])
            done = asyncio.create_task(reader.readline())
            try:
                await self._light(to, before, float(wanted["patience_s"]), done, say)
            finally:
                done.cancel()
        except PatchlightError as error:
            await say({"error": error.message})
        except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
            pass  # It hung up, or speaks otherwise.
        finally:
            writer.close()

    async def _light(
        self, to: int, before: int, patience_s: float, done: asyncio.Task[bytes], say: Any
    ) -> None:
        is_told = False
        while not done.done():
            node = await self._present(patience_s)
            try:
                async with node.path(to, patience_s) as path:
                    await asyncio.sleep(self._tuning_s)
                    if not is_told:
                        await say({"channel": path.channel})
                        is_told = True
                    await asyncio.wait({done}, timeout=path.until_s - time.monotonic())
                    if done.done():
                        await node.drained(before, _DRAINS_S)
            except NoPath:
                if node is self._node():  # else it has other bounds by now
                    raise
        with contextlib.suppress(OSError):
            await say({"ok": True})

    async def _present(self, patience_s: float) -> PathNode:
        """The node, once its NIC has bounds."""
        ends_s = time.monotonic() + patience_s
        while True:
            try:
                return self._node()
            except Conflict:
                if time.monotonic() > ends_s:
                    raise
            await asyncio.sleep(_AGAIN_S)
