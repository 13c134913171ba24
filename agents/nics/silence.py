"""No packet leaves a worker's namespace while its light moves, though nobody asks the worker."""

import errno
import time
from pathlib import Path

from patchlight.agents.errors import NicError
from patchlight.agents.nics.kernel import allowing, index_of, rtnetlink
from patchlight.testbed.linux import namespaces

# A queue of 50 ms is usual; one may be seconds deep on a slow link.
_QUEUE_S = 10.0


def silence(namespace: Path, interface: str) -> None:
    """Let no packet leave a worker's namespace: what its kernel would still send is dropped.

    Connections live on and send it again after ``unsilence``. On return the NIC's queue is empty;
    ``NicError`` if that takes too long. Again is harmless.
    """
    _blackhole(namespace, "add", errno.EEXIST)
    end = time.monotonic() + _QUEUE_S
    while queued := namespaces.inside(namespace, lambda: _queued_packets(interface)):
        if time.monotonic() > end:
            raise NicError(f"{interface} still has {queued} packets to send after {_QUEUE_S:g} s")
        time.sleep(0.002)


def _queued_packets(interface: str) -> int:
    with rtnetlink(interface, "reading the queue of") as ip:
        queues = [
            message.get_attr("TCA_STATS") for message in ip.get_qdiscs(index_of(ip, interface))
        ]
    return sum(queue["qlen"] for queue in queues if queue)


def unsilence(namespace: Path) -> None:
    """Let packets leave again; harmless where they do."""
    _blackhole(namespace, "del", errno.ENOENT)


def _blackhole(namespace: Path, command: str, already: int) -> None:
    def switch() -> None:
        with rtnetlink(namespace.name, "silencing") as ip, allowing(already):
            # After the rule for local addresses, before all others.
            ip.rule(command, priority=1, action="FR_ACT_BLACKHOLE")

    namespaces.inside(namespace, switch)
