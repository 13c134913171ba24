"""The bytecode of what an agent imports, as a file for servers with the Python of this machine.

With it next to nothing is compiled where an agent starts. What that imports is found by importing
it, in a process of its own::

    python -m patchlight.deploy.bytecode OUTPUT WHEEL...
"""

import contextlib
import importlib
import importlib.util
import marshal
import pkgutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from importlib.abc import InspectLoader
from pathlib import Path
from types import CodeType

from patchlight.testbed.errors import PatchlightError

# An agent's program, and what is imported late. Named only: who deploys imports none of it. What a
# list like this leaves out, the server compiles when it is first imported.
_AGENT = "patchlight.agents"
_PROGRAM = (
    "patchlight.cli.main",
    "patchlight.cli.agent",
    "patchlight.testbed.labfile.reader",
    "patchlight.testbed.linux.http_server",
    "cryptography.x509",
    "pydantic.v1",
    "uvicorn.lifespan.on",
    "uvicorn.loops.asyncio",
    "uvicorn.protocols.http.h11_impl",
)
_WORKERS = f"{_AGENT}.training"
_EPOCH = (1980, 1, 1, 0, 0, 0)
# Later formats have references, which depend on what else the process has imported.
_FORMAT = 2
_UNCHECKED = (1).to_bytes(4, "little")


def bytecode_of(release: str, wheels: Sequence[Path], cache: Path) -> Path:
    """A zip of ``.pyc`` files for the packages in ``wheels``, to be unpacked over them.

    It is taken from ``cache`` where that of the same ``release`` was made before.
    """
    path = cache / f"bytecode-{release}-{sys.implementation.cache_tag}.zip"
    if not path.exists():
        part = path.with_name(f".{path.name}.part")
        command = [sys.executable, "-m", __name__, str(part), *map(str, wheels)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise PatchlightError(
                f"compiling what an agent imports: {done.stderr.strip()[-600:]}",
                hint="Does an agent start here? patchlight agent run --help",
            )
        part.replace(path)
    return path


def unchecked_bytecode(source: bytes, code: CodeType) -> bytes:
    """What a ``.pyc`` file has; Python takes it whatever the source beside it is or is dated."""
    start = importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(source)
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
            name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            spec = getattr(sys.modules.get(name), "__spec__", None)
            if spec is None or not isinstance(spec.loader, InspectLoader):
                continue
            code = spec.loader.get_code(name)
            if code is None:
                continue
            entry = zipfile.ZipInfo(importlib.util.cache_from_source(path, optimization=""), _EPOCH)
            entry.external_attr = 0o644 << 16
            content = unchecked_bytecode(source, _named(code, path))
            file.writestr(entry, content, zipfile.ZIP_DEFLATED, compresslevel=1)


def _named(code: CodeType, path: str) -> CodeType:
    """The same code, wherever it lies here."""
    constants = [_named(c, path) if isinstance(c, CodeType) else c for c in code.co_consts]
    return code.replace(co_filename=path, co_consts=tuple(constants))


def _sources(wheels: Iterable[str]) -> Iterable[tuple[str, bytes]]:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as file:
            for path in file.namelist():
                if path.endswith(".py"):
                    yield path, file.read(path)


if __name__ == "__main__":
    _import_all()
    _write(Path(sys.argv[1]), _sources(sys.argv[2:]))
