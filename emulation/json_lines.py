"""One JSON object a line on a stream, each answered with one in order."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any


async def answer_lines(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    answer: Callable[[bytes], Awaitable[Mapping[str, Any]]],
) -> None:
    """Answer each line until the other end goes, or sends a line that is too long."""
    try:
        while line := await reader.readline():
            writer.write(json.dumps(await answer(line)).encode() + b"\n")
            await writer.drain()
    except (OSError, ValueError):
        # The other end went, or its line was longer than a line may be.
        return
    finally:
        writer.close()
