"""Writes an image of one layer as ``docker save`` does, and reads ids, without a Docker engine.

Imports the standard library alone, because ``deploy/worker-image.sh`` runs this very file with the
system's Python::

    image_file.py IMAGE TAR FILE [LABEL=VALUE...]
"""

import gzip
import hashlib
import io
import json
import os
import platform
import sys
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import IO

_PIECE = 1 << 20
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_LAYER = "layer.tar"


def write_image(
    image: str,
    root: Path,
    file: Path,
    labels: dict[str, str],
) -> None:
    """Write ``image``, whose files are those of the tar archive ``root``, all of it or nothing.

    The layer is compressed: a third of it is to be copied to servers. Equal contents make equal
    files. ``OSError`` where something cannot be read or written.
    """
    layer, part = (
        file.with_name(f".{file.name}.{name}") for name in ("layer", "part")
    )
    try:
        with root.open("rb") as source, layer.open("wb") as raw:
            digest = _compressed(source, raw)
        config = {
            "architecture": _MACHINES.get(
                platform.machine(), platform.machine()
            ),
            "os": "linux",
            "config": {"Env": ["LANG=C.UTF-8"], "Labels": labels},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
        manifest = [
            {"Config": "config.json", "RepoTags": [image], "Layers": [_LAYER]}
        ]
        with tarfile.open(part, "w") as tar, layer.open("rb") as packed:
            _add(tar, "manifest.json", json.dumps(manifest).encode())
            _add(tar, "config.json", json.dumps(config).encode())
            entry = tarfile.TarInfo(_LAYER)
            entry.size = layer.stat().st_size
            tar.addfile(entry, packed)
        os.replace(part, file)
    finally:
        layer.unlink(missing_ok=True)
        part.unlink(missing_ok=True)


def image_ids(file: Path) -> set[str]:
    """The names of the images in a file of ``docker save``; empty if it is packed."""
    with (
        suppress(
            OSError,
            tarfile.TarError,
            KeyError,
            ValueError,
        ),
        tarfile.open(file, "r:") as tar,
    ):

        def digest(name: str) -> str:
            return hashlib.sha256(_content(tar, name)).hexdigest()

        return {
            f"sha256:{digest(each['Config'])}"
            for each in json.loads(_content(tar, "manifest.json"))
        }
    return set()


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    return b"" if file is None else file.read()


def _compressed(source: IO[bytes], target: IO[bytes]) -> str:
    """Copy, compressed; the SHA-256 of what was read."""
    digest = hashlib.sha256()
    with gzip.GzipFile(
        "",
        "wb",
        compresslevel=1,
        fileobj=target,
        mtime=0,
    ) as packing:
        while piece := source.read(_PIECE):
            digest.update(piece)
            packing.write(piece)
    return digest.hexdigest()


def _add(
    tar: tarfile.TarFile,
    name: str,
    content: bytes,
) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    name, archive, output, *given = sys.argv[1:]
    try:
        write_image(
            name,
            Path(archive),
            Path(output),
            dict(each.split("=", 1) for each in given),
        )
    except OSError as error:
        sys.exit(f"image_file: {str(error) or type(error).__name__}")
