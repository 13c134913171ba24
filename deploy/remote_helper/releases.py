"""Where a deployment lies on a server: files, environments made of them, and images of workers."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

if TYPE_CHECKING:
    from patchlight.deploy.remote_helper.layers import Layers


class RequestRefused(Exception):
    """What was wanted cannot be done: the words say why, ``hint`` what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Places:
    """The folders of a lab on this server, below ``root`` (``/`` but in tests)."""

    def __init__(self, lab: str, root: Path) -> None:
        self.lab, self.root = lab, root
        self.home = root / "opt/patchlight" / lab
        self.files, self.releases = self.home / "files", self.home / "releases"
        # Layers that deployments made, and those that came with the server's image.
        self.layers, self.image_layers = self.home / "layers", root / "usr/lib/patchlight"
        self.configuration = self.home / "configuration"
        self.current, self.previous = self.home / "current", self.home / "previous"
        self.state = root / "var/lib/patchlight" / lab
        self.logs = root / "var/log/patchlight" / lab
        self.run = root / "run/patchlight-services" / lab
        # There while services may not run yet what is written down for them.
        self.unserved = self.home / "unserved"
        self.lock = root / "run" / f"patchlight-deploy-{lab}.lock"
        self.units = root / "etc/systemd/system"

    @property
    def folders(self) -> tuple[Path, ...]:
        """All that is this lab's alone."""
        return self.home, self.state, self.logs, self.run


def write(path: Path, text: str, mode: int = 0o644) -> bool:
    """Put ``text`` into a file, all of it or nothing; whether that changed anything."""
    with contextlib.suppress(OSError):
        if path.read_text() == text and path.stat().st_mode & 0o777 == mode:
            return False
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
        _to_disk(file)
    part.replace(path)
    return True


def _to_disk(file: IO[Any]) -> None:
    """Have a file survive a power cut: else its new name could outlive it."""
    file.flush()
    os.fsync(file.fileno())


def point(link: Path, target: str) -> None:
    """Make a symbolic link lead elsewhere, at once."""
    part = link.with_name(f".{link.name}.part")
    part.unlink(missing_ok=True)
    part.symlink_to(target)
    part.replace(link)


class Line:
    """The connection to who deploys: requests and answers are lines of JSON."""

    def __init__(self, incoming: BinaryIO, outgoing: BinaryIO) -> None:
        self.incoming, self._outgoing = incoming, outgoing

    def say(self, answer: dict[str, Any]) -> None:
        """Send one line."""
        self._outgoing.write(json.dumps(answer).encode() + b"\n")
        self._outgoing.flush()

    def run(self, *command: str | Path) -> str:
        """What a command writes; it ends with the other side. ``RequestRefused`` if it fails."""
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            assert process.stdout is not None
            output = bytearray()
            while piece := self._next(process):
                output += piece
        text = output.decode(errors="replace").strip()
        if process.returncode:
            last = text.splitlines()[-1:] or [f"status {process.returncode}"]
            raise RequestRefused(f"{Path(command[0]).name} failed: {last[0][-500:]}")
        return text

    def relay(self, command: list[str]) -> None:
        """Send what a command writes, until it ends or the other side is gone."""
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            assert process.stdout is not None
            while piece := self._next(process):
                self.say({"text": piece.decode(errors="replace")})

    def _next(self, process: subprocess.Popen[bytes]) -> bytes:
        """The next piece of its output; empty at its end."""
        assert process.stdout is not None
        output, here = process.stdout.fileno(), self.incoming.fileno()
        while True:
            # Nothing is sent while an answer is waited for: what comes is the end.
            ready, _, _ = select.select([output, here], [], [])
            if output in ready:
                return os.read(output, 1 << 16)
            process.kill()
            sys.exit("the connection was cut")


_PIECE = 1 << 18
_LOAD_PATIENCE_S = 1500.0
_RECORD = "release.json"
_LAYER = "layer"


class Releases:
    """The releases of one lab on this server; two are kept, to go back to the one before."""

    def __init__(self, places: Places, line: Line, layers: Layers) -> None:
        self._places, self._line, self._layers = places, line, layers

    def look(self) -> dict[str, Any]:
        """Which release is in use, which came before, and which files are here, whole or not."""
        files = self._places.files
        names = sorted(files.iterdir()) if files.is_dir() else []
        return {
            "release": self._record(self._places.current),
            "previous": self._record(self._places.previous),
            "files": [path.name for path in names if not path.suffix],
            "partial": {p.stem: p.stat().st_size for p in names if p.suffix == ".part"},
        }

    def put(self, sha256: str, size: int, offset: int) -> None:
        """Take the rest of a file, which follows the request; what came is kept after a cut."""
        self._places.files.mkdir(mode=0o755, parents=True, exist_ok=True)
        part = self._places.files / f"{sha256}.part"
        left, failed = size - offset, None
        try:
            with part.open("ab", buffering=0) as file:
                file.truncate(offset)
                while left:
                    piece = self._line.incoming.read1(min(_PIECE, left))  # type: ignore[attr-defined]
                    if not piece:
                        sys.exit("the connection was cut")
                    left -= len(piece)
                    if failed is None:
                        try:
                            _write_all(file, piece)
                        except OSError as error:
                            failed = error
        finally:
            if failed is not None and failed.errno == errno.ENOSPC:
                part.unlink(missing_ok=True)  # it takes the room that there is
        if failed is not None:
            raise failed
        with part.open("rb") as file:
            _to_disk(file)
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256:
            part.unlink()
            raise RequestRefused("a file came damaged", "run the command again: it is sent anew")
        part.replace(part.with_suffix(""))

    def install(
        self,
        release: str,
        packages: dict[str, str],
        layer: str,
        required: dict[str, str],
        installer: str,
        note: Any,
    ) -> bool:
        """Make the environment ``release`` of packages with their SHA-256, over the layer of those
        that they require; whether anything was made."""
        there, made = self._layers.make(layer, required, installer)
        folder = self._places.releases / release
        if (folder / _RECORD).exists():
            point(folder / _LAYER, str(there))
            return made
        shutil.rmtree(folder, ignore_errors=True)  # one whose making was cut short
        folder.mkdir(parents=True)
        point(folder / _LAYER, str(there))
        self._layers.install(folder, packages, there, _LAYER)
        os.sync()  # the record says that all of it is there, also after a power cut
        record = {"id": release, "files": sorted(packages.values()), **note}
        write(folder / _RECORD, json.dumps(record))
        return True

    def switch(self, release: str) -> bool:
        """Have ``current`` lead to it and ``previous`` to the one before; False if it did."""
        places = self._places
        before = self._record(places.current)
        self._check_layer(release)
        if before is not None and before["id"] == release:
            return False
        if before is not None:
            point(places.previous, f"releases/{before['id']}")
        point(places.current, f"releases/{release}")
        return True

    def prune(self) -> None:
        """Remove what neither of the two releases is made of."""
        kept = [
            r
            for r in (self._record(self._places.current), self._record(self._places.previous))
            if r
        ]
        releases = {record["id"] for record in kept}
        layers = {self._layer_of(name).name for name in releases}
        files = {sha256 for record in kept for sha256 in record["files"]}
        files.update(*map(self._layers.files, layers))
        for folder, names in (
            (self._places.releases, releases),
            (self._places.layers, layers),
            (self._places.files, files),
        ):
            for path in folder.iterdir() if folder.is_dir() else ():
                if path.name not in names and path.stem not in names:
                    path.unlink() if path.is_file() else shutil.rmtree(path)

    def _layer_of(self, release: str) -> Path:
        return (self._places.releases / release / _LAYER).resolve()

    def _check_layer(self, release: str) -> None:
        if not self._layers.find(self._layer_of(release).name):
            raise RequestRefused(
                f"the packages that release {release} requires are damaged",
                "'patchlight deploy push' installs them again.",
            )

    @staticmethod
    def _record(link: Path) -> dict[str, Any] | None:
        with contextlib.suppress(FileNotFoundError):
            record: dict[str, Any] = json.loads((link / _RECORD).read_text())
            return record
        return None


def _write_all(file: Any, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[file.write(view) :]


class Images:
    """What was loaded for one lab: each image with its file's SHA-256 and its id in the engine."""

    def __init__(self, places: Places) -> None:
        self._files, self._record = places.files, places.home / "images.json"

    def loaded(self) -> dict[str, str]:
        """The images that the engine has as they were loaded, with their files' SHA-256."""
        read = self._read()
        return {image: sha for image, (sha, known) in read.items() if _id_of(image) == known}

    def load(self, sha256: str, image: str) -> None:
        """Give the engine a file of ``docker save`` that has ``image``; the file is not kept."""
        from patchlight.testbed.linux import docker_engine

        path = self._files / sha256
        try:
            with path.open("rb") as archive:
                pieces = iter(lambda: archive.read(1 << 20), b"")
                answer = docker_engine.ask(
                    "POST", "/images/load?quiet=1", body=pieces, timeout_s=_LOAD_PATIENCE_S
                )
        except OSError as error:
            raise RequestRefused(
                f"giving the image to the Docker engine: {error}",
                "Start the engine there, or leave out --image-file.",
            ) from error
        number = _id_of(image)
        if answer.status != 200 or number is None:
            raise RequestRefused(
                f"the Docker engine got no {image} from the file: {answer.text.strip()[-300:]}",
                f"Make the file with: docker save {image} --output FILE",
            )
        self._write({**self._read(), image: (sha256, number)})
        path.unlink()

    def remove(self) -> None:
        """Take out what was loaded, unless it is used or another one by now."""
        from patchlight.testbed.linux import docker_engine

        for image, (_, known) in self._read().items():
            with contextlib.suppress(OSError):
                if _id_of(image) == known:
                    docker_engine.ask("DELETE", f"/images/{quote(image, safe='')}")

    def _read(self) -> dict[str, tuple[str, str]]:
        with contextlib.suppress(FileNotFoundError):
            record: dict[str, tuple[str, str]] = json.loads(self._record.read_text())
            return record
        return {}

    def _write(self, record: dict[str, tuple[str, str]]) -> None:
        write(self._record, json.dumps(record))


def _id_of(image: str) -> str | None:
    """What the engine calls it by its contents; ``None`` if it has none such, or is not there."""
    from patchlight.testbed.linux import docker_engine

    with contextlib.suppress(OSError, KeyError):
        answer = docker_engine.ask("GET", f"/images/{quote(image, safe='')}/json", timeout_s=10)
        return str(answer.json()["Id"]) if answer.status == 200 else None
    return None
