"""Layers of a lab on this server: the packages that its releases require, installed once."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from pathlib import Path

from patchlight.deploy.remote_helper.places import Line, Places, write

_RECORD = "layer.json"
# Arguments: the folder to fill, the name of the link in it to its layer ('' where it is one), where
# the installer is, and what is to be installed.
_INSTALL = """
import sys, sysconfig, zipfile
folder, layer, installer, *packages = sys.argv[1:]
sys.path.insert(0, installer)
from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.sources import WheelFile
if layer:
    import venv
    venv.EnvBuilder(symlinks=True).create(folder)
    paths = sysconfig.get_paths("venv", vars={"base": folder, "platbase": folder})
    with open(paths["purelib"] + "/layer.pth", "w") as file:
        file.write(f"import site; site.addsitedir(sys.prefix + '/{layer}')")
else:
    paths = {**dict.fromkeys(sysconfig.get_path_names(), folder), "scripts": f"{folder}/bin"}
here = SchemeDictionaryDestination(paths, f"{folder}/bin/python", "posix")
for path in packages:
    if path.endswith(".whl"):
        with WheelFile.open(path) as wheel:
            install(wheel, here, {"INSTALLER": b"patchlight"})
    else:
        with zipfile.ZipFile(path) as bytecode:
            bytecode.extractall(paths["purelib"])
"""


class Layers:
    """The layers; one that came with the server's image is used and never changed."""

    def __init__(self, places: Places, line: Line) -> None:
        self._places = places
        self._line = line
        self._found: dict[str, Path] = {}

    def find(self, layer: str) -> Path | None:
        """The folder of a layer that is here with every file, by size and date."""
        if layer in self._found:
            return self._found[layer]
        for folder in (
            self._places.layers / layer,
            self._places.image_layers / layer,
        ):
            with contextlib.suppress(OSError, ValueError):
                files = json.loads((folder / _RECORD).read_text())["files"]
                if all(
                    _state(f"{folder}/{path}") == state
                    for path, state in files.items()
                ):
                    return self._found.setdefault(layer, folder)
        return None

    def files(self, layer: str) -> list[str]:
        """The SHA-256 of what was sent for it."""
        with contextlib.suppress(OSError, ValueError):
            record = json.loads(
                (self._places.layers / layer / _RECORD).read_text()
            )
            return list(record["sent"])
        return []

    def make(
        self,
        layer: str,
        packages: dict[str, str],
        installer: str,
    ) -> tuple[Path, bool]:
        """A layer's folder, made beside and renamed if none was whole; and whether it was made."""
        if found := self.find(layer):
            return found, False
        folder = self._places.layers / layer
        part, old = (
            folder.with_name(f".{layer}.{name}") for name in ("part", "old")
        )
        for left in (part, old):
            shutil.rmtree(left, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            self.install(
                part,
                packages,
                self._places.files / installer,
                "",
            )
            paths = (path for path in part.rglob("*") if path.is_file())
            files = {
                str(path.relative_to(part)): _state(path) for path in paths
            }
            os.sync()  # the record says that all of it is there, also after a power cut
            write(
                part / _RECORD,
                json.dumps(
                    {"sent": sorted(packages.values()), "files": files}
                ),
            )
        except BaseException:
            # Frees space on a full disk.
            shutil.rmtree(part)
            raise
        if folder.exists():
            folder.rename(old)
        part.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
        return folder, True

    def install(
        self,
        folder: Path,
        packages: dict[str, str],
        installer: Path,
        layer: str,
    ) -> None:
        """Install files that were sent, by name and SHA-256, into a folder."""
        named = folder / "packages"
        named.mkdir()
        for name, sha256 in packages.items():
            (named / name).hardlink_to(self._places.files / sha256)
        command = (sys.executable, "-IBc", _INSTALL, folder, layer, installer)
        self._line.run(*command, *sorted(named.iterdir()))
        shutil.rmtree(named)


def _state(path: str | Path) -> list[int]:
    found = os.stat(path)
    return [found.st_size, int(found.st_mtime)]
