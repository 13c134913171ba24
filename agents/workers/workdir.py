"""Unpacks the working directory that a user shipped with a job into a worker's folder."""

import hashlib
import io
import os
import zipfile
from pathlib import Path, PurePosixPath

from patchlight.agents.errors import BadRequest
from patchlight.testbed.errors import reason
from patchlight.testbed.jobs import MOST_WORKDIR_BYTES, MOST_WORKDIR_FILES

WORKDIR = "workdir"
"""Its name within the worker's folder."""

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def unpack(
    archive: bytes,
    digest: str,
    folder: Path,
) -> None:
    """Write the files of a ZIP archive into an empty folder, for the folder's owner. They are plain
    files inside it, whatever the archive says; ``BadRequest`` for any other."""
    if hashlib.sha256(archive).hexdigest() != digest:
        raise BadRequest("the working directory did not arrive as it was sent")
    owner = folder.stat()
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            entries = files.infolist()
            size = sum(entry.file_size for entry in entries)
            if size > MOST_WORKDIR_BYTES or len(entries) > MOST_WORKDIR_FILES:
                raise BadRequest(
                    f"the working directory has {size >> 20} MiB in {len(entries)} files: more "
                    "than a job may ship"
                )
            for entry in entries:
                path = _inside(folder, entry.filename, owner)
                is_program = entry.external_attr >> 16 & 0o100
                mode = 0o755 if is_program else 0o644
                file = os.open(path, _NEW_FILE, mode)
                with os.fdopen(file, "wb") as opened:
                    opened.write(files.read(entry))
                    os.fchown(file, owner.st_uid, owner.st_gid)
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        OSError,
    ) as error:
        raise BadRequest(
            f"unpacking the working directory: {reason(error)}"
        ) from error


def _inside(
    folder: Path,
    name: str,
    owner: os.stat_result,
) -> Path:
    """The path of an entry, whose folders are made."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise BadRequest(f"the working directory has a file {name[:80]!r}")
    here = folder
    for part in parts[:-1]:
        here /= part
        if not here.is_dir():
            here.mkdir(0o755)
            os.chown(here, owner.st_uid, owner.st_gid)
    return here / parts[-1]
