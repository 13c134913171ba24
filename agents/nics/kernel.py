"""rtnetlink for NICs: open in the calling thread's namespace, with errors that say of which NIC.

pyroute2 is imported where it is used: an agent at rest is 9 MiB smaller without it.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from patchlight.agents.errors import NicError, NicGone
from patchlight.testbed.linux import ethtool
from patchlight.testbed.linux.netlink import KernelRefused
from patchlight.testbed.linux.rate_limits import LimitNotKept
from patchlight.testbed.linux.sysfs import NoSysfs, RdmaError


@contextmanager
def rtnetlink(interface: str, doing: str) -> Iterator[Any]:
    """pyroute2's ``IPRoute``; whatever the kernel refuses meanwhile is a ``NicError``."""
    from pyroute2 import IPRoute, NetlinkError

    try:
        with IPRoute() as ip:
            yield ip
    except NetlinkError as exc:
        hint = "run it as root" if exc.code == errno.EPERM else None
        raise NicError(f"{doing} {interface}: {os.strerror(exc.code)}", hint=hint) from exc
    except OSError as exc:
        raise NicError(f"{doing} {interface}: {exc}") from exc
    except (KernelRefused, LimitNotKept, ethtool.OffloadNotSet, RdmaError, NoSysfs) as exc:
        raise NicError(exc.message, hint=exc.hint) from exc


def index_of(ip: Any, interface: str) -> int:
    """The kernel's number of an interface; ``NicGone`` if there is none of that name here."""
    indices = ip.link_lookup(ifname=interface)
    if not indices:
        raise NicGone(
            f"there is no interface {interface} in this network namespace",
            hint="the lab file names a NIC's interface with 'interface:' where it differs from "
            "the NIC's name",
        )
    return int(indices[0])


@contextmanager
def allowing(code: int) -> Iterator[None]:
    """What the kernel refuses with this ``errno`` is as it should be already."""
    from pyroute2 import NetlinkError

    try:
        yield
    except NetlinkError as exc:
        if exc.code != code:
            raise
