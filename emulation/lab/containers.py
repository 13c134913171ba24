"""Remove a lab's Docker containers over the engine's own socket, where an engine answers.

Three HTTP requests need no Docker library, and ``down`` must work where none is installed.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from typing import Any
from urllib.parse import quote

from patchlight.testbed.errors import PatchlightError

LABEL = "patchlight.lab"
_DEFAULT = "unix:///var/run/docker.sock"


class ContainerNotRemoved(PatchlightError):
    """The Docker engine would not remove a container of the lab."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def engine_answers() -> bool:
    """Whether a Docker engine answers here."""
    try:
        return _ask("GET", "/_ping")[0] == 200
    except OSError:
        return False


def engine_has_image(image: str) -> bool:
    """Whether a Docker engine answers here and has the image."""
    try:
        return _ask("GET", f"/images/{quote(image, safe='')}/json")[0] == 200
    except OSError:
        return False


def remove_labelled(lab: str, engine: str = "") -> int:
    """Force away every container labelled ``patchlight.lab=<lab>``; return how many.

    ``engine`` is its URL (default: as ``DOCKER_HOST`` says). 0 where no engine answers. Raises
    ``ContainerNotRemoved`` if the engine refuses.
    """
    wanted = quote(json.dumps({"label": [f"{LABEL}={lab}"]}))
    try:
        status, listed = _ask("GET", f"/containers/json?all=1&filters={wanted}", engine)
    except OSError:
        return 0
    if status != 200:
        raise ContainerNotRemoved(f"listing the containers of lab {lab}: Docker said {listed}")
    for container in listed:
        identity = container["Id"]
        status, said = _ask("DELETE", f"/containers/{identity}?force=1&v=1", engine)
        # 404, 409: it is gone, or already on its way.
        if status not in (204, 404, 409):
            raise ContainerNotRemoved(f"removing the container {identity[:12]}: Docker said {said}")
    return len(listed)


def _ask(method: str, path: str, engine: str = "") -> tuple[int, Any]:
    connection = _connection(engine or engine_url())
    try:
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read()
        is_json = "json" in response.headers.get("Content-Type", "")
        return response.status, json.loads(body) if body and is_json else None
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"the Docker engine did not answer as one: {error}") from error
    finally:
        connection.close()


def engine_url() -> str:
    """Where the Docker engine is, as Docker's own programs find it."""
    return os.environ.get("DOCKER_HOST") or _DEFAULT


def _connection(host: str) -> http.client.HTTPConnection:
    scheme, _, rest = host.partition("://")
    if scheme == "unix":
        return _UnixConnection(rest)
    if scheme in ("tcp", "http"):
        return http.client.HTTPConnection(rest.rstrip("/"), timeout=30)
    raise OSError(f"DOCKER_HOST={host} is not a socket that can be asked without a login")
