"""Flow entries as OpenFlow 1.3 messages, and back.

The engine's own codec does the work. What it makes of a match and of a list of ports is kept,
for the same MAC and address go to every switch of a lab: serialising is what limits how
fast flows can be installed.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from ryu.ofproto import ofproto_v1_3 as ofp
from ryu.ofproto import ofproto_v1_3_parser as parser

from patchlight.controller.openflow.flowtable import COOKIE_MARK, COOKIE_MASK, FlowEntry, Match
from patchlight.testbed.errors import PatchlightError

_FIXED = struct.Struct(ofp.OFP_FLOW_MOD_PACK_STR0)
_HEADER = struct.Struct(ofp.OFP_HEADER_PACK_STR)
_MATCH_HEADER = struct.Struct("!HH")
# Sent to a port and no further: the switch hands no bytes to the controller, but where the port is
# the controller: then the whole frame.
_NO_BYTES = 0


class EntryRefused(PatchlightError):
    """A flow entry that cannot be said in OpenFlow 1.3."""


def add_message(entry: FlowEntry, xid: int) -> bytes:
    """The flow-mod that adds ``entry``, or replaces the one with its key."""
    rest = _match_bytes(entry.match) + _instruction_bytes(entry.outputs)
    return _flow_mod(entry, xid, ofp.OFPFC_ADD, entry.cookie, 0, rest)


def remove_message(entry: FlowEntry, xid: int) -> bytes:
    """The flow-mod that removes the entry with this key, if its cookie carries our mark."""
    rest = _match_bytes(entry.match)
    return _flow_mod(entry, xid, ofp.OFPFC_DELETE_STRICT, COOKIE_MARK, COOKIE_MASK, rest)


def _flow_mod(
    entry: FlowEntry, xid: int, command: int, cookie: int, mask: int, rest: bytes
) -> bytes:
    try:
        fixed = _FIXED.pack(
            cookie, mask, entry.table, command, entry.idle_timeout_s, entry.hard_timeout_s,
            entry.priority, ofp.OFP_NO_BUFFER, ofp.OFPP_ANY, ofp.OFPG_ANY, 0,
        )  # fmt: skip
    except struct.error as error:
        raise EntryRefused(f"a number is out of range: {error}") from error
    length = _HEADER.size + len(fixed) + len(rest)
    return _HEADER.pack(ofp.OFP_VERSION, ofp.OFPT_FLOW_MOD, length, xid) + fixed + rest


@lru_cache(maxsize=65536)
def _match_bytes(match: Match) -> bytes:
    # Field by field, as ``OFPMatch`` does it, without its two more turns of each value between
    # text and bytes: they are most of the cost of a flow-mod.
    buffer = bytearray(_MATCH_HEADER.size)
    try:
        fields = [ofp.oxm_from_user(name, value) for name, value in match.items()]
        # In the order of their numbers, what a field needs comes before it.
        for number, value, mask in sorted(fields, key=lambda field: field[0]):
            if mask is not None:
                value = bytes(a & b for a, b in zip(value, mask, strict=True))
            ofp.oxm_serialize(number, value, mask, buffer, len(buffer))
    except Exception as error:
        # The codec raises whatever its parts raise: KeyError, struct.error, netaddr's own.
        raise EntryRefused(f"the match {match!r} cannot be encoded: {error}") from error
    _MATCH_HEADER.pack_into(buffer, 0, ofp.OFPMT_OXM, len(buffer))
    return bytes(buffer) + bytes(-len(buffer) % 8)


@lru_cache(maxsize=4096)
def _instruction_bytes(outputs: tuple[int, ...]) -> bytes:
    if not outputs:
        return b""
    buffer = bytearray()
    try:
        actions = [parser.OFPActionOutput(port, _bytes_to_hand_over(port)) for port in outputs]
        parser.OFPInstructionActions(ofp.OFPIT_APPLY_ACTIONS, actions).serialize(buffer, 0)
    except Exception as error:
        raise EntryRefused(f"the output ports {outputs} cannot be encoded: {error}") from error
    return bytes(buffer)


def _bytes_to_hand_over(port: int) -> int:
    return int(ofp.OFPCML_NO_BUFFER) if port == ofp.OFPP_CONTROLLER else _NO_BYTES


def entry_of(stats: Any) -> FlowEntry:
    """The flow entry that a switch described.

    One of ours that does more than send to ports, so that somebody changed it, comes back
    without the low bits of its cookie: it equals none that we want, and is replaced.
    """
    outputs = _outputs(stats.instructions)
    return FlowEntry(
        table=stats.table_id,
        priority=stats.priority,
        match=Match(dict(stats.match.items())),
        outputs=outputs or (),
        cookie=stats.cookie if outputs is not None else stats.cookie & COOKIE_MASK,
        idle_timeout_s=stats.idle_timeout,
        hard_timeout_s=stats.hard_timeout,
    )


def _outputs(instructions: Iterable[Any]) -> tuple[int, ...] | None:
    ports: list[int] = []
    for instruction in instructions:
        if instruction.type != ofp.OFPIT_APPLY_ACTIONS:
            return None
        for action in instruction.actions:
            if action.type != ofp.OFPAT_OUTPUT:
                return None
            ports.append(action.port)
    return tuple(ports)


def error_text(message: Any) -> str:
    """A switch's error in OpenFlow's own words: ``OFPET_BAD_MATCH: OFPBMC_BAD_PREREQ``."""
    if message.type == ofp.OFPET_EXPERIMENTER:
        return f"experimenter error {message.experimenter:#x}, type {message.exp_type}"
    kind = ofp.ofp_error_type_to_str(message.type)
    return f"{kind}: {ofp.ofp_error_code_to_str(message.type, message.code)}"
