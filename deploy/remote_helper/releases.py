"""A deployment on a server: files, environments made of them, and images of workers."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from patchlight.deploy.remote_helper.layers import Layers
from patchlight.deploy.remote_helper.places import (
    Line,
    Places,
    RequestRefused,
    point,
    to_disk,
    write,
)

_PIECE = 1 << 18
_LOAD_PATIENCE_S = 1500.0
_RECORD = "release.json"
_LAYER = "layer"


class Releases:
    """The releases of one lab on this server; two are kept, to go back to the one before."""

    def __init__(
        self,
        places: Places,
        line: Line,
        layers: Layers,
    ) -> None:
        self._places = places
        self._line = line
        self._layers = layers

    def look(self) -> dict[str, Any]:
        """Which release is in use, which came before, and which files are here, whole or not."""
        files = self._places.files
        names = sorted(files.iterdir()) if files.is_dir() else []
        return {
            "release": self._record(self._places.current),
            "previous": self._record(self._places.previous),
            "files": [path.name for path in names if not path.suffix],
            "partial": {
                p.stem: p.stat().st_size for p in names if p.suffix == ".part"
            },
        }

    def put(
        self,
        sha256: str,
        size: int,
        offset: int,
    ) -> None:
        """Take the rest of a file, which follows the request; what came is kept after a cut."""
        self._places.files.mkdir(
            mode=0o755,
            parents=True,
            exist_ok=True,
        )
        part = self._places.files / f"{sha256}.part"
        left = size - offset
        failed = None
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
                part.unlink(missing_ok=True)  # frees space
        if failed is not None:
            raise failed
        with part.open("rb") as file:
            to_disk(file)
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256:
            part.unlink()
            raise RequestRefused(
                "a file arrived damaged",
                "run the command again: the file is sent again",
            )
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
        # One whose making was cut short.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        point(folder / _LAYER, str(there))
        self._layers.install(
            folder,
            packages,
            there,
            _LAYER,
        )
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
            for r in (
                self._record(self._places.current),
                self._record(self._places.previous),
            )
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
    """The images loaded for one lab, each with its file's SHA-256 and its id in the engine."""

    def __init__(self, places: Places) -> None:
        self._files = places.files
        self._record = places.home / "images.json"

    def identity(self, image: str) -> list[str]:
        """The id of an image in the engine, and the SHA-256 of the file it was loaded from."""
        number = _id_of(image)
        sha256, known = self._read().get(image, ("", ""))
        return [
            each
            for each in (number, sha256 if known == number else "")
            if each
        ]

    def load(self, sha256: str, image: str) -> None:
        """Give the engine a file of ``docker save`` that has ``image``; the file is not kept."""
        from patchlight.testbed.linux import docker_engine

        path = self._files / sha256
        try:
            with path.open("rb") as archive:
                pieces = iter(lambda: archive.read(1 << 20), b"")
                answer = docker_engine.ask(
                    "POST",
                    "/images/load?quiet=1",
                    body=pieces,
                    timeout_s=_LOAD_PATIENCE_S,
                )
        except OSError as error:
            raise RequestRefused(
                f"giving the image to the Docker engine: {str(error) or type(error).__name__}",
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
                    docker_engine.ask(
                        "DELETE", f"/images/{quote(image, safe='')}"
                    )

    def _read(self) -> dict[str, tuple[str, str]]:
        with contextlib.suppress(FileNotFoundError):
            record: dict[str, tuple[str, str]] = json.loads(
                self._record.read_text()
            )
            return record
        return {}

    def _write(self, record: dict[str, tuple[str, str]]) -> None:
        write(self._record, json.dumps(record))


def _id_of(image: str) -> str | None:
    """The engine's id of its contents; ``None`` if the image or the engine is missing."""
    from patchlight.testbed.linux import docker_engine

    with contextlib.suppress(OSError, KeyError):
        answer = docker_engine.ask(
            "GET", f"/images/{quote(image, safe='')}/json", timeout_s=10
        )
        return str(answer.json()["Id"]) if answer.status == 200 else None
    return None
