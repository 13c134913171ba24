"""Queries a Docker engine over its socket, without a Docker library or command.

Imports only the standard library, because scripts in ``deploy`` run this file with the system's
Python::

    docker_engine.py tells
    docker_engine.py answers URL
    docker_engine.py has     URL IMAGE RECIPE
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

_DEFAULT = "unix:///var/run/docker.sock"
_RECIPE_LABEL = "patchlight.recipe"


class EngineNotAskable(OSError):
    """The engine's URL needs a login."""


@dataclass(frozen=True)
class EngineAnswer:
    """A reply of the engine."""

    status: int
    headers: Mapping[str, str]
    text: str

    def json(self) -> Any:
        """The body as plain values; ``OSError`` if it is not JSON."""
        try:
            return json.loads(self.text)
        except ValueError as error:
            raise OSError(
                f"unexpected reply from the Docker engine: {error}"
            ) from error


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def engine_url() -> str:
    """The engine's URL, found as Docker's programs find it."""
    return os.environ.get("DOCKER_HOST") or _DEFAULT


def ask(
    method: str,
    path: str,
    url: str = "",
    *,
    body: Iterable[bytes] | None = None,
    timeout_s: float = 30.0,
) -> EngineAnswer:
    """The engine's reply to one request (``body``: a tar archive). ``OSError`` if it cannot be
    reached, ``EngineNotAskable`` if its URL is neither ``unix:`` nor plain ``tcp:``."""
    connection = _connection(url or engine_url(), timeout_s)
    try:
        headers = {} if body is None else {"Content-Type": "application/x-tar"}
        connection.request(
            method,
            path,
            body,
            headers,
            encode_chunked=body is not None,
        )
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
        return EngineAnswer(response.status, dict(response.getheaders()), text)
    except (http.client.HTTPException, ValueError) as error:
        said = str(error) or type(error).__name__
        raise OSError(
            f"unexpected reply from the Docker engine: {said}"
        ) from error
    finally:
        connection.close()


def _connection(url: str, timeout_s: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return _UnixConnection(parts.path, timeout_s)
    if parts.scheme in ("tcp", "http"):
        host = parts.hostname or "localhost"
        port = parts.port or 2375
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    raise EngineNotAskable(
        f"DOCKER_HOST={url} needs a login, which is not supported here"
    )


def answers(url: str = "") -> bool:
    """Whether a Docker engine answers at the URL."""
    try:
        return (
            ask(
                "GET",
                "/_ping",
                url,
                timeout_s=5,
            ).status
            == 200
        )
    except OSError:
        return False


def has_image(
    image: str,
    url: str = "",
    recipe: str | None = None,
) -> bool:
    """Whether the engine has the image, made by that recipe if one is given."""
    try:
        answer = ask("GET", f"/images/{quote(image, safe='')}/json", url)
        if answer.status != 200 or recipe is None:
            return answer.status == 200
        labels = answer.json()["Config"]["Labels"]
    except OSError:
        return False
    return labels is not None and labels.get(_RECIPE_LABEL) == recipe


def _tell() -> None:
    told: dict[str, Any] = {"url": engine_url(), "answers": False}
    try:
        ping = ask("GET", "/_ping", timeout_s=5)
        told["answers"] = ping.status == 200 and ping.text.strip() == "OK"
        told["api"] = ping.headers.get("Api-Version", "unknown")
        if told["answers"]:
            info = ask("GET", "/info", timeout_s=10).json()
            told["runtimes"] = sorted(info.get("Runtimes") or ())
            # Older engines (before 28) do not report the devices in their CDI files.
            told["devices"] = [
                device["ID"] for device in info.get("DiscoveredDevices") or ()
            ]
        else:
            told["said"] = f"answers {ping.status}: {ping.text[:80]}"
    except EngineNotAskable:
        told["answers"] = None
    except (OSError, AttributeError, KeyError, TypeError) as error:
        told["said"] = f"does not answer: {str(error) or type(error).__name__}"
    print("docker", json.dumps(told))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["tells"]:
            _tell()
        case ["answers", url]:
            sys.exit(not answers(url))
        case ["has", url, image, recipe]:
            sys.exit(not has_image(image, url, recipe))
        case _:
            sys.exit(__doc__)
