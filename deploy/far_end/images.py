"""Images of workers that a deployment gave to the Docker engine of a server.

What speaks to the engine is imported late: most connections need nothing of it.
"""

from __future__ import annotations

import contextlib
import json
from urllib.parse import quote

from .places import Places, Refused, write

_PATIENCE_S = 600.0


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
                    "POST", "/images/load?quiet=1", body=pieces, timeout_s=_PATIENCE_S
                )
        except OSError as error:
            raise Refused(
                f"giving the image to the Docker engine: {error}",
                "Start the engine there, or leave out --image-file.",
            ) from error
        number = _id_of(image)
        if answer.status != 200 or number is None:
            raise Refused(
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
