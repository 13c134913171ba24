"""Does the same on many servers at once; one that fails stops no other."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Generic, TypeVar

import paramiko

from patchlight.deploy.remote import Remote
from patchlight.deploy.ssh import Connections, Passwords
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Lab, Server

R = TypeVar("R")
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """What came of it on one server: a result, or an error."""

    server: str
    result: R | None = None
    error: PatchlightError | None = None


def everywhere(
    lab: Lab,
    servers: Sequence[Server],
    work: Callable[[Server, Remote], R],
    progress: Callable[[int, int], None],
    passwords: Passwords,
) -> list[Outcome[R]]:
    """Do ``work`` on all servers over SSH; the outcomes in the order of the servers.

    ``progress`` hears how many of how many are done. Ctrl-C cuts all connections; what the far
    ends were at stays as it is, to be continued.
    """
    open_now: set[paramiko.SSHClient] = set()
    over = False

    def do(server: Server) -> Outcome[R]:
        try:
            with connections.to(server) as client:
                open_now.add(client)
                try:
                    if over:
                        client.close()
                    with Remote(client, server.name, lab.name, passwords.sudo) as remote:
                        return Outcome(server.name, work(server, remote))
                finally:
                    open_now.discard(client)
        except PatchlightError as error:
            return Outcome(server.name, error=error)

    outcomes: dict[str, Outcome[R]] = {}
    with Connections(passwords) as connections, ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            for future in as_completed([pool.submit(do, server) for server in servers]):
                outcome = future.result()
                outcomes[outcome.server] = outcome
                progress(len(outcomes), len(servers))
        except BaseException:
            over = True
            pool.shutdown(wait=False, cancel_futures=True)
            for client in list(open_now):
                client.close()
            raise
    return [outcomes[server.name] for server in servers]
