"""The files for servers: wheels of Patchlight and of its requirements, for their Pythons.

A *part* of a bundle is for one kind of server (Python, machine) and one role. For servers like
this machine a part is made of what is installed here, without a network; for others it is
downloaded, in the same versions. ``write_bundle`` makes one file of parts, for labs that are
deployed from a machine without any network.
"""

import hashlib
import io
import json
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from packaging.requirements import Requirement

from patchlight.deploy.wheels import bytecode_of, needed, wheel_of
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.linux.files import private_folder, user_folder

Role = Literal["agent", "controller"]
ROLES: tuple[Role, ...] = ("agent", "controller")
INSTALLER = "installer"
# What an agent and its workers import, of all that Patchlight requires.
_AGENT_NEEDS = """
    click cryptography docker fastapi h11 httpx numpy nvidia-ml-py prometheus-client pydantic
    pyroute2 pyseccomp PyYAML rich uvicorn
"""
_SCHEMA = 1
_MANIFEST = "bundle.json"
# By PEP 600; the oldest C library that any Python of ours runs on is 2.17.
_OLDEST_GLIBC = 17
_MOST_MANIFEST_BYTES = 1 << 20


@dataclass(
    frozen=True,
    slots=True,
    order=True,
)
class Target:
    """A kind of server: Python's version (``3.11``), and the machine (``x86_64``)."""

    python: str
    machine: str

    def __str__(self) -> str:
        return f"Python {self.python} on {self.machine}"


@dataclass(
    frozen=True,
    slots=True,
)
class BundleFile:
    """A file of a bundle."""

    path: Path
    sha256: str
    size: int


@dataclass(
    frozen=True,
    slots=True,
)
class Part:
    """The files for one kind of server and one role, by name; ``glibc`` is the least it needs."""

    files: Mapping[str, BundleFile]
    glibc: tuple[int, int]

    @property
    def own(self) -> dict[str, BundleFile]:
        """Patchlight itself, and its bytecode."""
        required = self.required
        return {
            name: f for name, f in self.files.items() if name not in required
        }

    @property
    def required(self) -> dict[str, BundleFile]:
        """Its requirements, with the installer: a *layer*, which releases share."""
        of_layer = f"bytecode-{self.layer}-"
        ours = ("patchlight-", "bytecode-")
        return {
            n: f
            for n, f in self.files.items()
            if n.startswith(of_layer) or not n.startswith(ours)
        }

    @property
    def installer(self) -> BundleFile:
        """The wheel that installs the others."""
        return next(
            f
            for name, f in self.files.items()
            if name.startswith(f"{INSTALLER}-")
        )

    @property
    def layer(self) -> str:
        """The name of the layer: the same for the same wheels, so for one Python."""
        return self._name("patchlight-")

    @property
    def release(self) -> str:
        """The name of an environment of these wheels: the same for the same wheels."""
        return self._name(f"{INSTALLER}-")

    def _name(self, without: str) -> str:
        files = self.files.items()
        wheels = (
            f.sha256
            for n, f in files
            if n.endswith(".whl") and not n.startswith(without)
        )
        return hashlib.sha256("\n".join(sorted(wheels)).encode()).hexdigest()[
            :12
        ]


class Supply(Protocol):
    """Where parts come from."""

    def part(self, target: Target, role: Role) -> Part:
        """The part for such servers; ``PatchlightError`` where there can be none."""


class FromHere(Supply):
    """Parts made on this machine, once each; ``say`` hears of what takes long."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._parts: dict[tuple[Target, Role], Part] = {}
        self._one_at_a_time = threading.Lock()

    def part(self, target: Target, role: Role) -> Part:
        """The part, which is made the first time."""
        with self._one_at_a_time:
            key = (target, role)
            if key not in self._parts:
                self._parts[key] = _made(target, role, self._say)
            return self._parts[key]


class FromFile(Supply):
    """Parts out of a file of ``write_bundle``, unpacked into ``folder``; else ``BadInput``."""

    def __init__(self, file: Path, folder: Path) -> None:
        self._file = file
        try:
            with tarfile.open(file) as tar:
                manifest = json.loads(
                    _content(tar, _MANIFEST).read(_MOST_MANIFEST_BYTES)
                )
                if manifest["schema"] != _SCHEMA:
                    raise BadInput(
                        f"the bundle {file} has schema {manifest['schema']!r}"
                    )
                files = {}
                for name, sha256 in manifest["files"].items():
                    path = folder / Path(name).name
                    with path.open("wb") as output:
                        shutil.copyfileobj(
                            _content(tar, f"files/{name}"), output
                        )
                    files[name] = bundle_file(path)
                    if files[name].sha256 != sha256:
                        raise BadInput(
                            f"{name} in the bundle {file} is damaged"
                        )
            self._parts = {
                (Target(part["python"], part["machine"]), part["role"]): _part(
                    {name: files[name] for name in part["files"]}
                )
                for part in manifest["parts"]
            }
        except (
            OSError,
            tarfile.TarError,
            ValueError,
            KeyError,
            TypeError,
        ) as error:
            raise BadInput(
                f"reading the bundle {file}: {str(error) or type(error).__name__}",
                hint="Make it with 'patchlight deploy bundle --output FILE'.",
            ) from error

    def part(self, target: Target, role: Role) -> Part:
        """The part that is in the file; ``BadInput`` if it has none."""
        if (target, role) in self._parts:
            return self._parts[target, role]
        has = ", ".join(
            f"{role} for {each}" for each, role in sorted(self._parts)
        )
        raise BadInput(
            f"the bundle {self._file} cannot run the {role} on {target}: it has {has}",
            hint=f"Make one with 'patchlight deploy bundle --python {target.python} --machine "
            f"{target.machine}', with --controller for a controller.",
        )


def here() -> Target:
    """This machine's platform."""
    return Target(".".join(map(str, sys.version_info[:2])), platform.machine())


def write_bundle(
    parts: Mapping[tuple[Target, Role], Part], output: Path
) -> int:
    """Write parts into one file, all of it or nothing; its size in bytes."""
    files = {
        name: file
        for part in parts.values()
        for name, file in part.files.items()
    }
    manifest = {
        "schema": _SCHEMA,
        "patchlight": version("patchlight"),
        "parts": [
            {
                "python": t.python,
                "machine": t.machine,
                "role": role,
                "files": sorted(part.files),
            }
            for (t, role), part in parts.items()
        ],
        "files": {name: file.sha256 for name, file in files.items()},
    }
    part_file = output.with_name(f".{output.name}.part")
    try:
        with tarfile.open(part_file, "w") as tar:
            text = json.dumps(manifest, indent=2).encode()
            entry = tarfile.TarInfo(_MANIFEST)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
            for name, file in files.items():
                tar.add(file.path, f"files/{name}")
        part_file.replace(output)
    except OSError as error:
        raise PatchlightError(
            f"writing the bundle {output}: {error.strerror}",
            hint="Name a file in a writable folder on a disk with free space.",
        ) from error
    finally:
        part_file.unlink(missing_ok=True)
    return output.stat().st_size


def cache_folder() -> Path:
    """Where this user keeps wheels that were packed or downloaded."""
    return user_folder("XDG_CACHE_HOME", ".cache") / "patchlight/wheels"


def needed_by(role: Role) -> list[str]:
    """The names of the packages that a program of this role imports; Patchlight is not named."""
    if role == "agent":
        return _AGENT_NEEDS.split()
    roots = [
        Requirement(text) for text in distribution("patchlight").requires or ()
    ]
    names = [
        r.name
        for r in roots
        if r.marker is None or r.marker.evaluate({"extra": ""})
    ]
    with suppress(
        PackageNotFoundError
    ):  # the OpenFlow engine that is used where it is there
        distribution("ryu")
        names.append("ryu")
    return names


def _made(
    target: Target,
    role: Role,
    say: Callable[[str], None],
) -> Part:
    roots = [*needed_by(role), INSTALLER]
    found = needed(roots)
    cache = cache_folder()
    private_folder(cache)  # what is in it is run by root on the servers
    ours = wheel_of(
        distribution("patchlight"), cache, of_agent=role == "agent"
    )
    if target == here():
        say(f"making the bundle for {target} ({role})")
        wheels = [wheel_of(each, cache) for each in found.values()]
    else:
        pins = [f"{each.name}=={each.version}" for each in found.values()]
        say(f"downloading {len(pins)} packages for {target} ({role})")
        wheels = _downloaded(
            target,
            roots,
            pins,
            cache,
        )
    part = _part({path.name: bundle_file(path) for path in [ours, *wheels]})
    if target != here():
        return part
    pieces = (
        bytecode_of(part.release, [ours], cache),
        bytecode_of(part.layer, wheels, cache),
    )
    return replace(
        part, files={**part.files, **{p.name: bundle_file(p) for p in pieces}}
    )


def _downloaded(
    target: Target,
    roots: list[str],
    pins: list[str],
    cache: Path,
) -> list[Path]:
    digest = hashlib.sha256(
        "\n".join([str(target), *roots, *pins]).encode()
    ).hexdigest()[:16]
    folder = cache / digest
    if folder.is_dir():
        return sorted(folder.iterdir())
    cache.mkdir(
        parents=True,
        exist_ok=True,
    )
    newest = int(platform.libc_ver()[1].partition(".")[2] or _OLDEST_GLIBC)
    platforms = [
        f"manylinux_2_{n}_{target.machine}"
        for n in range(newest, _OLDEST_GLIBC - 1, -1)
    ]
    platforms += [f"manylinux2014_{target.machine}", f"linux_{target.machine}"]
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        wanted = Path(scratch) / "pins"
        part = Path(scratch) / "wheels"
        wanted.write_text("\n".join(pins))
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--only-binary=:all:",
        ]
        command += [
            "--disable-pip-version-check",
            "--implementation=cp",
            "--dest",
            str(part),
        ]
        command += [
            f"--python-version={target.python}",
            f"--constraint={wanted}",
        ]
        command += [f"--platform={name}" for name in platforms]
        done = subprocess.run(
            [*command, *roots],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise PatchlightError(
                f"downloading packages for {target}: pip ended with status {done.returncode}; "
                f"its last output:\n    {done.stderr.strip()[-600:]}",
                hint="Make the bundle on a machine with network access ('patchlight deploy bundle "
                f"--python {target.python} --machine {target.machine} --output FILE'), and push "
                "it with --bundle FILE; or install this machine's Python version on the servers.",
            )
        part.replace(folder)
    return sorted(folder.iterdir())


def _part(files: Mapping[str, BundleFile]) -> Part:
    return Part(files, max(map(oldest_c_library, files), default=(2, 0)))


def oldest_c_library(wheel: str) -> tuple[int, int]:
    """The oldest C library that a wheel runs on: the oldest of its tags."""
    tags = wheel.removesuffix(".whl").rpartition("-")[2].split(".")
    known = {
        "manylinux1": (2, 5),
        "manylinux2010": (2, 12),
        "manylinux2014": (2, 17),
    }
    least = []
    for tag in tags:
        if found := re.match(r"manylinux_(\d+)_(\d+)_", tag):
            least.append((int(found[1]), int(found[2])))
        elif (old := tag.partition("_")[0]) in known:
            least.append(known[old])
        elif tag.startswith("linux_"):  # built on this machine
            major, _, minor = platform.libc_ver()[1].partition(".")
            least.append((int(major or 0), int(minor or 0)))
    return min(least, default=(2, 0))


def _content(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    content = tar.extractfile(name)
    if content is None:
        raise ValueError(f"{name} is not a plain file")
    return content


def bundle_file(path: Path) -> BundleFile:
    """A file to be brought to servers, as it is now."""
    with path.open("rb") as file:
        digest: Any = hashlib.file_digest(file, "sha256")
    return BundleFile(path, digest.hexdigest(), path.stat().st_size)


def parts_for(
    supply: Supply,
    targets: Iterable[Target],
    roles: Iterable[Role],
) -> dict[tuple[Target, Role], Part]:
    """The parts for all of these kinds of servers and roles."""
    return {
        (each, role): supply.part(each, role)
        for each in targets
        for role in roles
    }
