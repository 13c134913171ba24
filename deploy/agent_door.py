"""Asks the agents of a lab how they are, as its controller does: over mutual TLS."""

import http.client
import json
import socket
import ssl
from typing import Any

from patchlight.deploy.remote import ConnectionCut, Remote
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Lab, Server
from patchlight.testbed.linux.credentials import Credentials, agent_name
from patchlight.testbed.linux.sockets import split_address

_PATIENCE_S = 5.0
# Ending workers takes them as long as they are given to end by themselves.
_DRAIN_PATIENCE_S = 60.0


class AgentDoesNotAnswer(PatchlightError):
    """No agent of that server answers where the lab file says that it does."""


class AgentDoor:
    """The agents of ``lab``, for who holds the controller's credentials.

    Each is called where the lab file says that it answers: from here, or from its own server where
    SSH goes through a jump host.
    """

    def __init__(self, lab: Lab, credentials: Credentials) -> None:
        self._lab, self._tls = lab.name, credentials.context(server=False)

    def status(self, server: Server, remote: Remote) -> dict[str, Any]:
        """What an agent says of itself; ``AgentDoesNotAnswer``."""
        return self._call(server, remote, "GET", "/v1/status", _PATIENCE_S)

    def drain(self, server: Server, remote: Remote) -> None:
        """Have an agent end its workers and take everything back; ``AgentDoesNotAnswer``."""
        self._call(server, remote, "POST", "/v1/drain", _DRAIN_PATIENCE_S)

    def _call(
        self, server: Server, remote: Remote, method: str, path: str, patience_s: float
    ) -> dict[str, Any]:
        host, port = split_address(listening_at(server))
        name = agent_name(server.name, self._lab)
        try:
            with (
                _connected(server, remote, host, port, patience_s) as plain,
                self._tls.wrap_socket(plain, server_hostname=name) as tls,
            ):
                connection = http.client.HTTPConnection(host, port)
                connection.sock = tls
                connection.request(method, path, headers={"Connection": "close"})
                response = connection.getresponse()
                answer: dict[str, Any] = json.loads(response.read())
        except (OSError, ValueError, http.client.HTTPException, ConnectionCut) as error:
            why = error.reason if isinstance(error, ssl.SSLError) else error
            raise AgentDoesNotAnswer(
                f"the agent of {server.name} at {server.management} does not answer: "
                f"{why or type(error).__name__}",
                hint=f"See what it says: patchlight deploy logs {self._lab} --server {server.name}",
            ) from error
        if response.status != http.client.OK:
            raise AgentDoesNotAnswer(
                f"the agent of {server.name}: {answer.get('error')}", hint=answer.get("hint")
            )
        return answer


def _connected(
    server: Server, remote: Remote, host: str, port: int, patience_s: float
) -> socket.socket:
    if server.ssh.jump_host is None:
        return socket.create_connection((host, port), timeout=patience_s)
    way = remote.way_to(host, port)
    way.settimeout(patience_s)
    return way


def listening_at(server: Server) -> str:
    """Where the agent of a server is to listen: ``host:port``.

    ``PatchlightError`` if the lab file does not say so.
    """
    if server.management is None or server.management.startswith("unix:"):
        raise PatchlightError(
            f"the lab file does not say where the agent of {server.name} answers",
            hint="Write 'management: HOST:8471' at the server, with its management address.",
        )
    return server.management
