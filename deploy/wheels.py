"""Makes wheels of what is installed here, and bytecode of an agent's imports; needs no network.

For servers with the Python of this machine next to nothing is then compiled where an agent starts.
What an agent imports is found by importing it, in a process of its own::

    python -m patchlight.deploy.wheels OUTPUT WHEEL...
"""

import base64
import contextlib
import hashlib
import importlib
import importlib.util
import marshal
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.abc import InspectLoader
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from types import CodeType
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
# Learned policies are half of Patchlight's size.
_FOR_CONTROLLERS = (".onnx", "/deploy/lock.txt")
_RECIPE = 3  # raise it when the contents of wheels change


def needed(names: Iterable[str]) -> dict[str, Distribution]:
    """These installed distributions and all they require; ``PatchlightError`` if one is missing."""
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
                f"making a bundle: {name} is not installed",
                hint="Install Patchlight with its dependencies (deploy/bootstrap.sh).",
            ) from error
        requirements = map(Requirement, found[name].requires or ())
        waiting += [
            r.name
            for r in requirements
            if r.marker is None or r.marker.evaluate({"extra": ""})
        ]
    return dict(sorted(found.items()))


def wheel_of(
    installed: Distribution,
    cache: Path,
    *,
    of_agent: bool = False,
) -> Path:
    """The wheel of a distribution, from ``cache`` where the same was packed before; ``of_agent``:
    ours without what only a controller reads."""
    name = re.sub(r"[-_.]+", "_", installed.name)
    build = ""
    ours: dict[str, Path | bytes] | None = None
    digest = hashlib.sha256()
    if canonicalize_name(installed.name) == _OURS:
        ours = dict(_our_files(installed))
        tags = ["py3-none-any"]
        if of_agent:
            build = "0agent-"
            ours = {
                path: ours[path]
                for path in ours
                if not path.endswith(_FOR_CONTROLLERS)
            }
        for path, source in ours.items():
            digest.update(f"{path}\0".encode() + _content(source))
    else:
        tags = _tags(installed)
        digest.update(
            f"{_RECIPE}\n{installed.read_text('RECORD') or ''}".encode()
        )
    python, abi, _ = tags[0].split("-")
    platforms = ".".join(dict.fromkeys(tag.split("-")[2] for tag in tags))
    file = f"{name}-{installed.version}-{build}{python}-{abi}-{platforms}.whl"
    target = cache / digest.hexdigest()[:16] / file
    if not target.exists():
        target.parent.mkdir(
            parents=True,
            exist_ok=True,
        )
        with tempfile.NamedTemporaryFile(
            dir=target.parent,
            delete=False,
        ) as part:
            try:
                files = ours or _installed_files(installed)
                _pack(files, part)
                os.replace(part.name, target)
            except BaseException:
                os.unlink(part.name)
                raise
    return target


def _pack(files: dict[str, Path | bytes], target: IO[bytes]) -> None:
    info = next(
        path for path in files if path.endswith(".dist-info/WHEEL")
    ).rpartition("/")[0]
    record = []
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, source in files.items():
            content = _content(source)
            _add(wheel, path, content)
            digest = base64.urlsafe_b64encode(
                hashlib.sha256(content).digest()
            ).decode()
            quoted = f'"{path}"' if "," in path else path
            record.append(
                f"{quoted},sha256={digest.rstrip('=')},{len(content)}\n"
            )
        _add(
            wheel,
            f"{info}/RECORD",
            "".join([*record, f"{info}/RECORD,,\n"]).encode(),
        )


def _add(
    wheel: zipfile.ZipFile,
    path: str,
    content: bytes,
) -> None:
    entry = zipfile.ZipInfo(path, _EPOCH)
    entry.external_attr = 0o644 << 16
    wheel.writestr(
        entry,
        content,
        zipfile.ZIP_DEFLATED,
        compresslevel=1,
    )


def _content(source: Path | bytes) -> bytes:
    return source if isinstance(source, bytes) else source.read_bytes()


def _installed_files(installed: Distribution) -> dict[str, Path | bytes]:
    """The files of the packages' folder; programs are made again from the entry points."""
    files: dict[str, Path | bytes] = {}
    for path in installed.files or ():
        runs = (
            path.suffix not in {".pyc", *_FOR_DEVELOPERS}
            and _TESTS not in path.parts
        )
        if (
            runs
            and path.parts[0] != ".."
            and not (
                path.parts[0].endswith(".dist-info") and path.name in _NOT_OURS
            )
        ):
            files[path.as_posix()] = Path(str(path.locate()))
    return files


def _tags(installed: Distribution) -> list[str]:
    lines = (installed.read_text("WHEEL") or "").splitlines()
    if tags := [
        line.partition(":")[2].strip()
        for line in lines
        if line.startswith("Tag:")
    ]:
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
    metadata = (
        installed.read_text("METADATA")
        or installed.read_text("PKG-INFO")
        or ""
    ).encode()
    yield f"{info}/METADATA", metadata
    yield (
        f"{info}/WHEEL",
        (
            b"Wheel-Version: 1.0\nGenerator: patchlight\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    )
    yield (
        f"{info}/entry_points.txt",
        (installed.read_text("entry_points.txt") or "").encode(),
    )


def _below(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir():
            if path.name != "__pycache__":
                yield from _below(path)
        else:
            yield path


# An agent's program, and what is imported late. Named only: who deploys imports none of it. What a
# list like this leaves out, the server compiles when it is first imported.
_AGENT = "patchlight.agents"
_PROGRAM = (
    "patchlight.cli.main",
    "patchlight.cli.agent",
    "patchlight.testbed.labfile.reader",
    "patchlight.testbed.linux.http_server",
    "cryptography.x509",
    "installer.destinations",
    "installer.sources",
    "patchlight.emulation.lab.gpus",
    "pydantic.v1",
    "uvicorn.lifespan.on",
    "uvicorn.loops.asyncio",
    "uvicorn.protocols.http.h11_impl",
)
_WORKERS = f"{_AGENT}.training"
# Later formats have references, which depend on what else the process has imported.
_FORMAT = 2
_UNCHECKED = (1).to_bytes(4, "little")


def bytecode_of(
    release: str,
    wheels: Sequence[Path],
    cache: Path,
) -> Path:
    """A zip of ``.pyc`` files to be unpacked over ``wheels``, from ``cache`` if made before."""
    path = cache / f"bytecode-{release}-{sys.implementation.cache_tag}.zip"
    if not path.exists():
        part = path.with_name(f".{path.name}.part")
        command = [
            sys.executable,
            "-P",
            "-m",
            __name__,
            str(part),
            *map(str, wheels),
        ]
        done = subprocess.run(
            command,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise PatchlightError(
                f"compiling what an agent imports: {done.stderr.strip()[-600:]}",
                hint="Check that an agent starts here: patchlight agent run --help",
            )
        part.replace(path)
    return path


def unchecked_bytecode(source: bytes, code: CodeType) -> bytes:
    """The content of a ``.pyc`` file that Python uses whatever the source beside it."""
    start = (
        importlib.util.MAGIC_NUMBER
        + _UNCHECKED
        + importlib.util.source_hash(source)
    )
    return start + marshal.dumps(code, _FORMAT)


def _import_all() -> None:
    for name in _PROGRAM:
        with contextlib.suppress(ImportError):  # another version of theirs
            importlib.import_module(name)
    agent = importlib.import_module(_AGENT)
    for found in pkgutil.walk_packages(agent.__path__, f"{_AGENT}."):
        if not found.name.startswith(_WORKERS):
            importlib.import_module(found.name)


def _write(output: Path, sources: Iterable[tuple[str, bytes]]) -> None:
    """Write the bytecode of those of these modules (their paths in a wheel) that are imported."""
    with zipfile.ZipFile(output, "w") as file:
        for path, source in sources:
            name = (
                path.removesuffix(".py")
                .removesuffix("/__init__")
                .replace("/", ".")
            )
            spec = getattr(sys.modules.get(name), "__spec__", None)
            if spec is None or not isinstance(spec.loader, InspectLoader):
                continue
            code = spec.loader.get_code(name)
            if code is None:
                continue
            cached = importlib.util.cache_from_source(path, optimization="")
            _add(file, cached, unchecked_bytecode(source, _named(code, path)))


def _named(code: CodeType, path: str) -> CodeType:
    """The same code, wherever it lies here."""
    constants = [
        _named(c, path) if isinstance(c, CodeType) else c
        for c in code.co_consts
    ]
    return code.replace(
        co_filename=path,
        co_consts=tuple(constants),
    )


def _sources(wheels: Iterable[str]) -> Iterable[tuple[str, bytes]]:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as file:
            for path in file.namelist():
                if path.endswith(".py"):
                    yield path, file.read(path)


if __name__ == "__main__":
    _import_all()
    _write(Path(sys.argv[1]), _sources(sys.argv[2:]))
