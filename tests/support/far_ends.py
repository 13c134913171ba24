"""The far end of a deployment here, below a folder instead of ``/``; and small wheels for it."""

import base64
import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class FarEndProcess:
    """A far end, spoken to by hand."""

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

    def put(self, content: bytes, offset: int = 0, *, sha256: str | None = None) -> Any:
        """Send a file; the whole answer."""
        name = sha256 or sha256_of(content)
        fields = {"do": "put", "sha256": name, "size": len(content), "offset": offset}
        self.write(json.dumps(fields).encode() + b"\n" + content[offset:])
        return self.read()

    def cut(self) -> None:
        """End the connection, as when the line breaks, and wait until the far end has seen it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)


@contextmanager
def far_end(root: Path, lab: str = "lab") -> Iterator[FarEndProcess]:
    """A far end of ``lab`` for as long as the block runs."""
    command = [sys.executable, "-m", "patchlight.deploy.far_end", lab, str(root)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        far = FarEndProcess(process)
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
        "    time.sleep(float(sys.argv[1]))\n"
    )
    files = {
        "tiny.py": program.encode(),
        "tiny.bin": filling,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": b"[console_scripts]\ntiny = tiny:main\n",
    }
    record = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in files.items()]
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
        wheel.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,"]) + "\n")
    return path


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
