"""Wheels of what is installed here, made again from the installed files; no network is needed.

Who deploys runs a version that works together with the rest: the servers get just that one.
"""

import base64
import hashlib
import os
import re
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import IO

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from patchlight.testbed.errors import PatchlightError

_OURS = "patchlight"
# The date of every file in a wheel: equal contents make equal wheels.
_EPOCH = (1980, 1, 1, 0, 0, 0)
# What an installer writes about itself, and what Python makes again.
_NOT_OURS = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
# Folders of what others try their packages with, up to a quarter of all files. Nobody imports them.
_TESTS = "tests"
# What is for compilers and type checkers, and read by nothing that runs.
_FOR_DEVELOPERS = {".a", ".c", ".h", ".pxd", ".pyi", ".pyx"}
_RECIPE = 3  # to be raised when wheels of the same files get other contents


def needed(names: Iterable[str]) -> dict[str, Distribution]:
    """The installed distributions of these names, and all that they require, by name.

    ``PatchlightError`` for one that is not installed here.
    """
    found: dict[str, Distribution] = {}
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError as error:
            raise PatchlightError(
                f"making a bundle: {name} is not installed here",
                hint="Install Patchlight with all that it requires (deploy/bootstrap.sh).",
            ) from error
        requirements = map(Requirement, found[name].requires or ())
        waiting += [
            r.name for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})
        ]
    return dict(sorted(found.items()))


def wheel_of(installed: Distribution, cache: Path) -> Path:
    """The wheel of a distribution, from ``cache`` where the same was packed before."""
    name = re.sub(r"[-_.]+", "_", installed.name)
    ours: dict[str, Path | bytes] | None = None
    digest = hashlib.sha256()
    if canonicalize_name(installed.name) == _OURS:
        ours, tags = dict(_our_files(installed)), ["py3-none-any"]
        for path, source in ours.items():
            digest.update(f"{path}\0".encode() + _content(source))
    else:
        tags = _tags(installed)
        digest.update(f"{_RECIPE}\n{installed.read_text('RECORD') or ''}".encode())
    python, abi, _ = tags[0].split("-")
    platforms = ".".join(dict.fromkeys(tag.split("-")[2] for tag in tags))
    file = f"{name}-{installed.version}-{python}-{abi}-{platforms}.whl"
    target = cache / digest.hexdigest()[:16] / file
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as part:
            try:
                files = ours or _installed_files(installed)
                _pack(files, part)
                os.replace(part.name, target)
            except BaseException:
                os.unlink(part.name)
                raise
    return target


def _pack(files: dict[str, Path | bytes], target: IO[bytes]) -> None:
    info = next(path for path in files if path.endswith(".dist-info/WHEEL")).rpartition("/")[0]
    record = []
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, source in files.items():
            content = _content(source)
            _add(wheel, path, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
            record.append(f"{_quoted(path)},sha256={digest.rstrip('=')},{len(content)}\n")
        _add(wheel, f"{info}/RECORD", "".join([*record, f"{info}/RECORD,,\n"]).encode())


def _add(wheel: zipfile.ZipFile, path: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(path, _EPOCH)
    entry.external_attr = 0o644 << 16
    wheel.writestr(entry, content, zipfile.ZIP_DEFLATED, compresslevel=1)


def _quoted(path: str) -> str:
    return f'"{path}"' if "," in path else path


def _content(source: Path | bytes) -> bytes:
    return source if isinstance(source, bytes) else source.read_bytes()


def _installed_files(installed: Distribution) -> dict[str, Path | bytes]:
    """What runs of the packages' folder; programs are made again from the entry points."""
    files: dict[str, Path | bytes] = {}
    for path in installed.files or ():
        runs = path.suffix not in {".pyc", *_FOR_DEVELOPERS} and _TESTS not in path.parts
        if (
            runs
            and path.parts[0] != ".."
            and not (path.parts[0].endswith(".dist-info") and path.name in _NOT_OURS)
        ):
            files[path.as_posix()] = Path(str(path.locate()))
    return files


def _tags(installed: Distribution) -> list[str]:
    lines = (installed.read_text("WHEEL") or "").splitlines()
    if tags := [line.partition(":")[2].strip() for line in lines if line.startswith("Tag:")]:
        return tags
    raise PatchlightError(
        f"making a bundle: {installed.name} was not installed from a wheel",
        hint=f"pip install --force-reinstall {installed.name}",
    )


def _our_files(installed: Distribution) -> Iterator[tuple[str, Path | bytes]]:
    """Patchlight itself, from a checkout or installed: its folder, links followed."""
    # Not resolved: in a checkout, the folders of the package are links to those beside it.
    folder = Path(__file__).absolute().parents[1]
    for path in sorted(_below(folder)):
        yield f"{_OURS}/{path.relative_to(folder).as_posix()}", path
    info = f"{_OURS}-{installed.version}.dist-info"
    metadata = (installed.read_text("METADATA") or installed.read_text("PKG-INFO") or "").encode()
    yield f"{info}/METADATA", metadata
    yield (
        f"{info}/WHEEL",
        (b"Wheel-Version: 1.0\nGenerator: patchlight\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
    )
    yield f"{info}/entry_points.txt", (installed.read_text("entry_points.txt") or "").encode()


def _below(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir():
            if path.name != "__pycache__":
                yield from _below(path)
        else:
            yield path
