"""Results: the folder they go to, where they come from, and the machine they were measured on."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from patchlight.testbed.errors import BadInput, PatchlightError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from patchlight.controller.policies.contract import PolicyKind


def write_report(
    result: Mapping[str, Any],
    folder: Path,
    plots: Mapping[str, Callable[[], Figure]] = MappingProxyType({}),
    tables: Mapping[str, Callable[[Path], object]] = MappingProxyType({}),
    note: str = "",
) -> list[Path]:
    """Write ``result.json`` into the folder, which is made, then tables and plots; the files.

    ``tables`` are written by their functions to the files of these names, ``plots`` drawn and
    saved in all formats, with the ``note`` above each.
    """
    files = [folder / "result.json", *(folder / name for name in tables)]
    # NaN is not JSON.
    text = json.dumps(
        result,
        indent=2,
        ensure_ascii=False,
        allow_nan=False,
    )
    try:
        folder.mkdir(
            parents=True,
            exist_ok=True,
        )
        files[0].write_text(text + "\n", encoding="utf-8")
        for name, write in tables.items():
            write(folder / name)
        if plots:
            # Not above: importing Matplotlib takes longer than most commands.
            from patchlight.emulation.simulator import figures

            for name, draw in plots.items():
                files += figures.save(draw, folder / name, note)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    return files


def results_folder(output: Path | None, name: str) -> Path:
    """The folder ``output``, else one with this name and the time, which can be written.

    It is made to try, and removed again. ``PatchlightError`` if results cannot be written there.
    """
    folder = output or Path("results") / time.strftime(f"{name}-%Y%m%d-%H%M%S")
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    if not missing and not folder.is_dir():
        raise BadInput(f"cannot write results to {folder}: it is a file")
    try:
        folder.mkdir(
            parents=True,
            exist_ok=True,
        )
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _cannot_write(folder, error) from error
    finally:
        with suppress(OSError):
            for each in missing:
                each.rmdir()
    return folder


def give_to_caller(paths: Sequence[Path]) -> None:
    """Under sudo, results belong to who called it, not to root."""
    owner = os.environ.get("SUDO_UID")
    group = os.environ.get("SUDO_GID")
    if os.geteuid() == 0 and owner and group:
        for path in {
            *paths,
            *(p.parent for p in paths if p.parent.name == "results"),
        }:
            os.chown(path, int(owner), int(group))


def _cannot_write(folder: Path, error: OSError) -> PatchlightError:
    return PatchlightError(
        f"cannot write the results to {folder}: {error.strerror or error}",
        hint="choose another folder with --output",
    )


def provenance(
    seeds: Iterable[int],
    files: Iterable[Path] = (),
    machine: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Version, commit (``None`` outside a checkout), whether it has other ``changed`` files,
    command, seeds, SHA-256 of input files, machine. Call it first: files change, and ``machine``
    shows how busy it is now."""
    try:
        installed = version("patchlight")
    except PackageNotFoundError:
        installed = "unknown"
    commit = _git("rev-parse", "HEAD")
    status = (
        None
        if commit is None
        else _git("status", "--porcelain", "--untracked-files=no")
    )
    return {
        "version": installed,
        "commit": commit,
        "changed": None if status is None else bool(status),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "seeds": list(seeds),
        "sha256": {str(file): _hash_of(file) for file in dict.fromkeys(files)},
        "machine": describe_machine() if machine is None else machine,
    }


def policy_files(names: Iterable[str], kind: PolicyKind) -> list[Path]:
    """The files of the policies that come from files; of a learned one its card, too."""
    from patchlight.controller.policies.registry import find

    found: list[Path] = []
    for name in names:
        path = find(name, kind).path
        if path is not None:
            card = path.with_suffix(".json")
            found += (
                [path, card]
                if path.suffix == ".onnx" and card.is_file()
                else [path]
            )
    return found


def _git(*arguments: str) -> str | None:
    """Git's output in this checkout; ``None`` outside of one."""
    root = Path(__file__).resolve().parents[2]
    # Another user's checkout, as under sudo, is read too.
    command = [
        "git",
        "-c",
        f"safe.directory={root}",
        "-C",
        str(root),
        *arguments,
    ]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=5,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _hash_of(file: Path) -> str | None:
    """SHA-256 of a file, or of a folder's files by name; ``None`` where it cannot be read."""
    try:
        if not file.is_dir():
            with file.open("rb") as opened:
                return hashlib.file_digest(opened, "sha256").hexdigest()
        found = hashlib.sha256()
        for each in sorted(path for path in file.rglob("*") if path.is_file()):
            found.update(
                f"{each.relative_to(file)}\0{_hash_of(each)}\n".encode()
            )
        return found.hexdigest()
    except OSError:
        return None


class CpuTicks(NamedTuple):
    """Processor time since the machine's start, in ticks: taken by its host, idle, and all."""

    steal: int
    idle: int
    total: int

    def busy_since(self, earlier: CpuTicks) -> float:
        """The share of processor time that was not idle since then."""
        total = max(1, self.total - earlier.total)
        return 1 - (self.idle - earlier.idle) / total


def cpu_ticks() -> CpuTicks:
    """The processor time of all cores until now."""
    first = Path("/proc/stat").read_text(encoding="utf-8").partition("\n")[0]
    # user, nice, system, idle, iowait, irq, softirq, steal; guests' are in user already.
    ticks = [int(each) for each in first.split()[1:9]]
    return CpuTicks(ticks[7], ticks[3] + ticks[4], sum(ticks))


def describe_machine() -> dict[str, Any]:
    """CPU, cores, memory, kernel, Python, and how busy the machine is."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo")
        .read_text(encoding="utf-8")
        .splitlines()
        if line.startswith("model name")
    ]
    memory_kib = int(
        Path("/proc/meminfo").read_text(encoding="utf-8").split()[1]
    )
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": memory_kib * 1024,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average_1min": os.getloadavg()[0],
    }
