"""Packs a user's folder for the workers of a job: what Git does not ignore, as a ZIP archive."""

import hashlib
import io
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import MOST_WORKDIR_BYTES, MOST_WORKDIR_FILES

# Of Git, Python and virtual environments, which work in their own place only.
_NEVER = {".git", "__pycache__"}
_ENVIRONMENT = "pyvenv.cfg"
_EPOCH = (1980, 1, 1, 0, 0, 0)


class Workdir(NamedTuple):
    """A packed folder, its SHA-256 ``digest``, and what was ``left_out``: links out of it."""

    archive: bytes
    digest: str
    left_out: list[str]


def packed(folder: Path) -> Workdir:
    """The folder's files, the same bytes for the same files; ``BadInput`` if they are too many."""
    root = folder.resolve()
    if not root.is_dir():
        raise BadInput(f"--workdir {folder}: no such folder")
    total = 0
    left_out = []
    packing = io.BytesIO()
    with zipfile.ZipFile(
        packing, "w", zipfile.ZIP_DEFLATED, compresslevel=1
    ) as files:
        for number, name in enumerate(sorted(_names(root))):
            path = root / name
            real = path.resolve()
            if not real.is_relative_to(root) or not real.is_file():
                left_out.append(name)
                continue
            total += real.stat().st_size
            if total > MOST_WORKDIR_BYTES or number >= MOST_WORKDIR_FILES:
                raise BadInput(
                    f"--workdir {folder}: more than {MOST_WORKDIR_BYTES >> 20} MiB or "
                    f"{MOST_WORKDIR_FILES} files",
                    hint="list data and results in .gitignore there; put data on the servers, in "
                    "/srv",
                )
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (real.stat().st_mode & 0o777) << 16
            files.writestr(entry, _content(real))
    archive = packing.getvalue()
    digest = hashlib.sha256(archive).hexdigest()
    return Workdir(archive, digest, left_out)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"reading {path}: {error.strerror}") from error


def _names(root: Path) -> Iterator[str]:
    added = _not_ignored(root)
    for here, folders, files in os.walk(root):
        if _ENVIRONMENT in files:
            folders.clear()
            continue
        within = Path(here).relative_to(root)
        links = [each for each in folders if Path(here, each).is_symlink()]
        folders[:] = [each for each in folders if each not in _NEVER]
        for each in (*files, *links):
            name = (within / each).as_posix()
            if added is None or name in added:
                yield name


def _not_ignored(root: Path) -> set[str] | None:
    """The files that Git would add, by the rules of ``.gitignore``; ``None`` without such rules."""
    if not any(root.rglob(".gitignore")):
        return None
    with tempfile.TemporaryDirectory() as folder:
        # A repository of its own: the user's may run programs, and may be above this folder.
        git = ["git", "--git-dir", folder, "--work-tree", str(root)]
        lists = ["ls-files", "--others", "--exclude-standard", "-z"]
        with suppress(OSError, subprocess.CalledProcessError):
            subprocess.run(
                ["git", "init", "--quiet", "--bare", folder],
                check=True,
                capture_output=True,
            )
            found = subprocess.run(
                [*git, *lists],
                cwd=root,
                check=True,
                capture_output=True,
            )
            return set(os.fsdecode(found.stdout).split("\0"))
    raise BadInput(
        f"--workdir {root}: its .gitignore cannot be read without Git",
        hint="apt install git",
    )
