"""The requests that lead frames from one interface to others, whatever they are: traffic control.

A redirect is a filter on the ingress of an interface: any protocol, no learning, no TTL. A frame
that enters where there is none ends there, as the interfaces have no addresses.
"""

import struct
from collections.abc import Sequence

from patchlight.testbed.linux.netlink import F_CREATE, F_DUMP, F_EXCL, Netlink, Request, attribute

_NEWQDISC, _DELQDISC, _GETQDISC = 36, 37, 38
_NEWTFILTER, _DELTFILTER = 44, 45
_KIND, _OPTIONS = 1, 2
_CLSACT, _CLSACT_HANDLE, _CLSACT_INGRESS = 0xFFFFFFF1, 0xFFFF0000, 0xFFFFFFF2
_ANY_PROTOCOL = 0x0300  # htons(ETH_P_ALL)
_TC_MESSAGE = struct.Struct("=BxxxiIII")
_U32_SEL, _U32_ACT, _ACT_KIND, _ACT_OPTIONS, _MIRRED_PARMS = 5, 7, 1, 2, 2
# One key that every frame matches: mask 0, value 0, at offset 0.
_MATCH_ALL = struct.pack("=BBBxHHhhI", 1, 0, 1, 0, 0, 0, 0, 0) + struct.pack("=IIii", 0, 0, 0, 0)
_MIRRED = struct.Struct("=IIiiiiI")
_EGRESS_REDIRECT, _EGRESS_MIRROR = 1, 2
_STOLEN, _TO_NEXT_ACTION, _TO_NEXT_FILTER = 4, 3, -1
# The kernel's limit of actions in one filter.
_ACTIONS = 32


def with_ingress(netlink: Netlink) -> list[int]:
    """The indexes of interfaces of the socket's namespace that redirects can be put on."""
    request = Request(_GETQDISC, F_DUMP, _TC_MESSAGE.pack(0, 0, 0, 0, 0), "listing ports")
    queues = (_TC_MESSAGE.unpack_from(answer) for _, answer in netlink.ask(request))
    return [index for _, index, _, parent, _ in queues if parent == _CLSACT]


def add_ingress(index: int) -> Request:
    """Make an interface one that redirects can be put on."""
    return _ingress(_NEWQDISC, F_CREATE | F_EXCL, index)


def remove_ingress(index: int) -> Request:
    """The contrary; its redirects go with it."""
    return _ingress(_DELQDISC, 0, index)


def _ingress(kind: int, flags: int, index: int) -> Request:
    head = _TC_MESSAGE.pack(0, index, _CLSACT_HANDLE, _CLSACT, 0)
    body = head + attribute(_KIND, b"clsact\0")
    return Request(kind, flags, body, f"readying an optical port (interface {index})")


def redirect(path: str, inp: int, outs: Sequence[int]) -> list[Request]:
    """Every frame that enters at interface ``inp`` leaves at all the interfaces ``outs``.

    ``path`` is what an error calls it. There must be none on ``inp`` yet.
    """
    requests = []
    for first in range(0, len(outs), _ACTIONS):
        some = outs[first : first + _ACTIONS]
        actions = [_mirred(out, _EGRESS_MIRROR, _TO_NEXT_ACTION) for out in some[:-1]]
        if first + _ACTIONS < len(outs):
            actions.append(_mirred(some[-1], _EGRESS_MIRROR, _TO_NEXT_FILTER))
        else:
            actions.append(_mirred(some[-1], _EGRESS_REDIRECT, _STOLEN))
        listed = (attribute(n, action) for n, action in enumerate(actions, 1))
        options = (attribute(_U32_SEL, _MATCH_ALL), attribute(_U32_ACT, listed))
        body = _filter_on(inp, first // _ACTIONS) + attribute(_OPTIONS, options)
        doing = f"lighting the path {path}"
        requests.append(Request(_NEWTFILTER, F_CREATE | F_EXCL, body, doing))
    return requests


def undirect(path: str, inp: int, outs: int = 1) -> list[Request]:
    """Take away what ``redirect`` made on ``inp`` for so many ``outs``; ``path`` as there."""
    filters = range((outs + _ACTIONS - 1) // _ACTIONS)
    doing = f"darkening {path}"
    return [Request(_DELTFILTER, 0, _filter_on(inp, number), doing) for number in filters]


def _mirred(out: int, how: int, then: int) -> bytes:
    parms = _MIRRED.pack(0, 0, then, 0, 0, how, out)
    options = attribute(_ACT_OPTIONS, attribute(_MIRRED_PARMS, parms))
    return attribute(_ACT_KIND, b"mirred\0") + options


def _filter_on(index: int, number: int) -> bytes:
    """``number``: filters of one interface are tried in this order, from 0."""
    priority = (number + 1) << 16 | _ANY_PROTOCOL
    head = _TC_MESSAGE.pack(0, index, 0, _CLSACT_INGRESS, priority)
    return head + attribute(_KIND, b"u32\0")
