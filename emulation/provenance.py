"""Where a result comes from, so that it can be cited and made again."""

import hashlib
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from patchlight.controller.policies.contract import PolicyKind
from patchlight.controller.policies.registry import find
from patchlight.emulation.machine import describe_machine

_GIT_S = 5.0


def provenance(
    seeds: Iterable[int], files: Iterable[Path] = (), machine: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Version, commit, command, seeds, SHA-256 of the files that went in, and the machine.

    Ask when the work begins: files may change, and ``machine`` says how busy it is now. ``commit``
    is ``None`` outside a checkout, ``changed`` whether the checkout has changes besides.
    """
    commit, changed = _checkout()
    return {
        "version": _version(),
        "commit": commit,
        "changed": changed,
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "seeds": list(seeds),
        "sha256": {str(file): _hash_of(file) for file in dict.fromkeys(files)},
        "machine": describe_machine() if machine is None else machine,
    }


def policy_files(names: Iterable[str], kind: PolicyKind) -> list[Path]:
    """The files of those policies that come from files; of a learned one its card, too."""
    found: list[Path] = []
    for name in names:
        path = find(name, kind).path
        if path is not None:
            card = path.with_suffix(".json")
            found += [path, card] if path.suffix == ".onnx" and card.is_file() else [path]
    return found


def _version() -> str:
    try:
        return version("patchlight")
    except PackageNotFoundError:
        return "unknown"


def _checkout() -> tuple[str | None, bool | None]:
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None, None
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None, None
    status = _git(root, "status", "--porcelain", "--untracked-files=no")
    return commit, None if status is None else bool(status)


def _git(root: Path, *arguments: str) -> str | None:
    # A checkout of another user's, as under sudo, is read all the same.
    command: Sequence[str] = ["git", "-c", f"safe.directory={root}", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_GIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _hash_of(file: Path) -> str | None:
    """Of a folder those of its files together, by name; ``None`` where there is none."""
    try:
        if not file.is_dir():
            with file.open("rb") as opened:
                return hashlib.file_digest(opened, "sha256").hexdigest()
        found = hashlib.sha256()
        for each in sorted(path for path in file.rglob("*") if path.is_file()):
            found.update(f"{each.relative_to(file)}\0{_hash_of(each)}\n".encode())
        return found.hexdigest()
    except OSError:
        return None
