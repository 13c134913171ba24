"""The remote helper of a deployment, below a folder instead of ``/``; small wheels for it."""

import base64
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from patchlight.deploy.wheels import wheel_of
from tests.support.waiting import PATIENCE_S


class HelperProcess:
    """A remote helper, spoken to by hand."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self.hello = self.read()

    def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline() or "{}")

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def tell(self, request: str, **fields: Any) -> Any:
        """The whole answer to a request, which may be an error."""
        self.write(json.dumps({"do": request, **fields}).encode() + b"\n")
        return self.read()

    def ask(self, request: str, **fields: Any) -> Any:
        """The answer of a request that succeeds."""
        told = self.tell(request, **fields)
        assert "answer" in told, told
        return told["answer"]

    def put(
        self, content: bytes, offset: int = 0, *, sha256: str | None = None
    ) -> Any:
        """Send a file; the whole answer."""
        name = sha256 or sha256_of(content)
        fields = {
            "do": "put",
            "sha256": name,
            "size": len(content),
            "offset": offset,
        }
        self.write(json.dumps(fields).encode() + b"\n" + content[offset:])
        return self.read()

    def release(
        self, folder: Path, name: str, wheel: Path, *more: Path
    ) -> dict[str, Any]:
        """Send a release of a wheel that requires no more than the installer, and ``more``; what
        is to be asked for to have it installed."""
        installer = wheel_of(distribution("installer"), folder / "cache")
        required = {
            path.name: sha256_of(path.read_bytes())
            for path in (installer, *more)
        }
        for path in (wheel, installer, *more):
            assert self.put(path.read_bytes()) == {"answer": None}
        return {
            "release": name,
            "packages": {wheel.name: sha256_of(wheel.read_bytes())},
            "layer": sha256_of(json.dumps(required).encode())[:12],
            "required": required,
            "installer": required[installer.name],
            "note": {"by": "me"},
        }

    def cut(self) -> None:
        """Break the connection, and wait until the remote helper has seen it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=PATIENCE_S)


@contextmanager
def remote_helper(
    root: Path, lab: str = "lab", **environment: str
) -> Iterator[HelperProcess]:
    """A remote helper of ``lab`` for as long as the block runs."""
    command = [
        sys.executable,
        "-m",
        "patchlight.deploy.remote_helper",
        lab,
        str(root),
    ]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
    ) as process:
        far = HelperProcess(process)
        try:
            yield far
        finally:
            far.cut()


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def small_wheel(folder: Path, version: str, filling: bytes = b"") -> Path:
    """A wheel of a package ``tiny`` whose command ``tiny SECONDS`` says its version and sleeps.

    ``filling`` is what it has besides.
    """
    path = folder / f"tiny-{version}-py3-none-any.whl"
    info = f"tiny-{version}.dist-info"
    program = (
        "import sys, time\n"
        f"def main():\n    print('tiny {version}', flush=True)\n"
        "    time.sleep(float(sys.argv[1]))  # a service that does nothing\n"
    )
    files = {
        "tiny.py": program.encode(),
        "tiny.bin": filling,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": b"[console_scripts]\ntiny = tiny:main\n",
    }
    record = [
        f"{name},sha256={_digest(content)},{len(content)}"
        for name, content in files.items()
    ]
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            # The same bytes whenever it is made.
            wheel.writestr(zipfile.ZipInfo(name), content)
        lines = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
        wheel.writestr(zipfile.ZipInfo(f"{info}/RECORD"), lines)
    return path


def _digest(content: bytes) -> str:
    return (
        base64.urlsafe_b64encode(hashlib.sha256(content).digest())
        .decode()
        .rstrip("=")
    )


# What ``systemctl`` does for one unit after the other, as far as a deployment asks for it.
_SYSTEMCTL = """#!/bin/sh
verb=$1; shift
case $1 in --quiet) shift ;; --property) shift 2 ;; esac
[ "${NESTED-}" ] || echo "$verb $*" >>"$STATE/calls"
export NESTED=yes
for unit do shift; [ $# = 0 ] || "$0" $verb "$unit"; done
file=$UNITS/$unit pid=$STATE/$unit.pid
case $verb in
    daemon-reload|reset-failed) ;;
    enable) [ -e "$file" ] && : >"$STATE/$unit.enabled" ;;
    disable) rm "$STATE/$unit.enabled" ;;
    start)
        [ -e "$STATE/$unit.enabled" ] || exit 5
        kill -0 "$(cat "$pid" 2>/dev/null || echo none)" 2>/dev/null && exit 0
        command=$(sed -n 's/^ExecStart=//p' "$file")
        setsid $command >>"$STATE/journal" 2>&1 </dev/null &
        echo $! >"$pid" ;;
    stop) kill "$(cat "$pid" 2>/dev/null || echo none)" 2>/dev/null; rm -f "$pid" ;;
    restart) "$0" stop "$unit"; "$0" start "$unit" ;;
    show) echo "MainPID=$(cat "$pid" 2>/dev/null || echo 0)"; echo NRestarts=0 ;;
    *) echo "unknown verb $verb" >&2; exit 1 ;;
esac
"""


def systemd_stand_in(folder: Path, root: Path) -> dict[str, str]:
    """The environment in which ``systemctl`` is a stand-in; ``calls`` has what it was told."""
    (root / "run/systemd/system").mkdir(parents=True)
    folder.mkdir()
    program = folder / "systemctl"
    program.write_text(_SYSTEMCTL)
    program.chmod(0o755)
    units = root / "etc/systemd/system"
    return {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "UNITS": str(units),
        "STATE": str(folder),
    }


def small_image(folder: Path, name: str) -> bytes:
    """What ``docker save`` writes of an image with one file in it."""
    layer = folder / "layer.tar"
    whole = folder / "image.tar"
    with tarfile.open(layer, "w") as tar:
        _add(tar, "hello", name.encode())
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {},
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{sha256_of(layer.read_bytes())}"],
        },
    }
    manifest = [
        {"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}
    ]
    with tarfile.open(whole, "w") as tar:
        _add(tar, "config.json", json.dumps(config).encode())
        _add(tar, "layer.tar", layer.read_bytes())
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    return whole.read_bytes()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
