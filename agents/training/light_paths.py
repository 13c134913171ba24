"""Requests optical paths from the controller, with only the standard library."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

from .task import TrainingError, reason

_LONGEST_WAIT_S = 20.0
# The controller closes idle connections after 5 s; a request must not race with that.
_LONGEST_IDLE_S = 2.0


class NoPath(TrainingError):
    """The controller granted no path, or did not answer."""


class PathClient:
    """One connection to a controller's API, ``host:port`` or ``unix:PATH``; not thread-safe."""

    def __init__(self, api: str, timeout_s: float = 60.0) -> None:
        self._api = api
        self._answered_at = time.monotonic()
        if api.startswith("unix:"):
            self._connection: http.client.HTTPConnection = _OverUnix(
                api[5:], timeout_s
            )
        else:
            self._connection = http.client.HTTPConnection(
                api, timeout=timeout_s
            )

    def close(self) -> None:
        """Close the connection. Paths that were not released end with their lease."""
        self._connection.close()

    @contextlib.contextmanager
    def path(
        self,
        source: str,
        destination: str,
        nbytes: float,
        patience_s: float = 60.0,
        **more: Any,
    ) -> Iterator[dict[str, Any]]:
        """Request a path between hosts; the result's ``channel`` is in THz. ``more``:
        ``collective``, ``round``, ``deadline_s``, ``lease_s``. ``NoPath`` after ``patience_s``."""
        wanted = {
            "source": source,
            "destination": destination,
            "bytes": nbytes,
            **more,
        }
        ends = time.monotonic() + patience_s
        path = self._ask("POST", "/v1/paths", wanted)
        try:
            while path["state"] == "waiting":
                left_s = ends - time.monotonic()
                if left_s <= 0:
                    raise NoPath(
                        f"no path from {source} to {destination} in {patience_s:g} s"
                    )
                wait_s = min(left_s, _LONGEST_WAIT_S, path["lease_s"] / 2)
                path = self._ask(
                    "GET", f"/v1/paths/{path['id']}?wait_s={wait_s:.3f}"
                )
            if path["state"] != "granted":
                raise NoPath(
                    f"the path from {source} to {destination} was {path['state']}"
                )
            yield path
        finally:
            with contextlib.suppress(NoPath):  # The lease will end it.
                self._ask("DELETE", f"/v1/paths/{path['id']}")

    def _ask(
        self,
        method: str,
        path: str,
        body: Any = None,
    ) -> dict[str, Any]:
        text = None if body is None else json.dumps(body)
        headers = {} if text is None else {"Content-Type": "application/json"}
        if time.monotonic() - self._answered_at > _LONGEST_IDLE_S:
            self._connection.close()  # The next request reconnects.
        try:
            self._connection.request(
                method,
                path,
                text,
                headers,
            )
            answer = self._connection.getresponse()
            found = json.loads(answer.read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            self._connection.close()
            raise NoPath(
                f"requesting a path from the controller at {self._api}: {reason(error)}"
            ) from error
        self._answered_at = time.monotonic()
        if answer.status >= 400:
            raise NoPath(f"the controller refused the path: {found['detail']}")
        return dict(found)


class _OverUnix(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
