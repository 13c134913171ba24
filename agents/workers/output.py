"""A worker's output: bounded on the disk, and read in parts by byte offset."""

import codecs
import os
from pathlib import Path

from patchlight.agents.errors import AgentError
from patchlight.testbed.linux import files as sparse_files
from patchlight.testbed.linux.files import open_plain
from patchlight.testbed.wire.worker_api import LogPart

MOST_KEPT_BYTES = 64 * 2**20
"""Of a longer output the beginning is dropped, down to half of this."""

_TAIL_BYTES = 16 * 1024


def bound(path: Path) -> None:
    """Drop the beginning of an output that has become too long. Harmless if there is none."""
    try:
        if path.lstat().st_size <= MOST_KEPT_BYTES:
            return
        with open_plain(path, change=True) as file:
            size = os.fstat(file.fileno()).st_size
            if size - sparse_files.first_kept(file.fileno()) > MOST_KEPT_BYTES:
                sparse_files.give_back(file.fileno(), size - MOST_KEPT_BYTES // 2)
    except FileNotFoundError:
        return


def read(path: Path, after: int, limit: int) -> LogPart:
    """At most ``limit`` bytes after the first ``after``, as text; nothing before it began.

    A character at the end that is only half there comes with the next part.
    """
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            offset = min(max(after, sparse_files.first_kept(file.fileno())), size)
            data = os.pread(file.fileno(), limit, offset)
    except FileNotFoundError:
        return LogPart(offset=after, text="", next=after)
    except OSError as exc:
        raise AgentError(f"reading the output {path}: {exc.strerror}") from exc
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(data)
    begun, _ = decoder.getstate()
    if offset + len(data) == size and begun == data:  # nothing will complete it
        text, begun = data.decode(errors="replace"), b""
    if offset > after:
        text = f"[{offset - after} bytes of output are not kept any more]\n{text}"
    return LogPart(offset=offset, text=text, next=offset + len(data) - len(begun))


def last_lines(path: Path, count: int = 20) -> tuple[str, ...]:
    """The last lines of the output; none if it cannot be read."""
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            data = os.pread(file.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    except OSError:
        return ()
    return tuple(line.rstrip() for line in data.decode(errors="replace").splitlines()[-count:])
