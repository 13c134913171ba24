"""Encodes flow entries and groups as OpenFlow 1.3 messages, and reads them in a switch's answers.

The engine's codec makes the messages. Encoded matches and ports are cached, because the same
addresses go to every switch, and encoding limits the rate of flow installation.
"""

import struct
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from ryu.ofproto import ofproto_v1_3 as ofp
from ryu.ofproto import ofproto_v1_3_parser as parser

from patchlight.controller.packet_switches.openflow.flowtable import (
    COOKIE_MARK,
    COOKIE_MASK,
    FlowEntry,
    Match,
)
from patchlight.testbed.errors import PatchlightError, reason

_FIXED = struct.Struct(ofp.OFP_FLOW_MOD_PACK_STR0)
HEADER = struct.Struct(ofp.OFP_HEADER_PACK_STR)
_MATCH_HEADER = struct.Struct("!HH")
Groups = Mapping[int, tuple[int, ...]]
"""The ports of Patchlight's select groups by id, in the order of buckets; none for any other."""


class EntryRefused(PatchlightError):
    """A flow entry that OpenFlow 1.3 cannot express."""


def add_message(
    entry: FlowEntry,
    xid: int,
    group: int | None = None,
) -> bytes:
    """The flow-mod that adds ``entry``, or replaces the one with its key."""
    rest = _match_bytes(entry.match) + _instruction_bytes(entry.outputs, group)
    return _flow_mod(
        entry,
        xid,
        ofp.OFPFC_ADD,
        entry.cookie,
        0,
        rest,
    )


def remove_message(entry: FlowEntry, xid: int) -> bytes:
    """The flow-mod that removes the entry with this key, if its cookie has the mark."""
    rest = _match_bytes(entry.match)
    return _flow_mod(
        entry,
        xid,
        ofp.OFPFC_DELETE_STRICT,
        COOKIE_MARK,
        COOKIE_MASK,
        rest,
    )


def _flow_mod(
    entry: FlowEntry,
    xid: int,
    command: int,
    cookie: int,
    mask: int,
    rest: bytes,
) -> bytes:
    try:
        fixed = _FIXED.pack(
            cookie, mask, entry.table, command, entry.idle_timeout_s, entry.hard_timeout_s,
            entry.priority, ofp.OFP_NO_BUFFER, ofp.OFPP_ANY, ofp.OFPG_ANY, 0,
        )  # fmt: skip
    except struct.error as error:
        raise EntryRefused(f"a number is out of range: {error}") from error
    length = HEADER.size + len(fixed) + len(rest)
    return (
        HEADER.pack(
            ofp.OFP_VERSION,
            ofp.OFPT_FLOW_MOD,
            length,
            xid,
        )
        + fixed
        + rest
    )


@lru_cache(maxsize=65536)
def _match_bytes(match: Match) -> bytes:
    # Like ``OFPMatch`` but without converting each value to text and back twice, which is most of
    # the cost of a flow-mod.
    buffer = bytearray(_MATCH_HEADER.size)
    try:
        fields = [
            ofp.oxm_from_user(name, value) for name, value in match.items()
        ]
        # In numerical order, prerequisites of a field come before it.
        for number, value, mask in sorted(fields, key=lambda field: field[0]):
            if mask is not None:
                value = bytes(a & b for a, b in zip(value, mask, strict=True))
            ofp.oxm_serialize(
                number,
                value,
                mask,
                buffer,
                len(buffer),
            )
    except Exception as error:
        # The codec raises any error of its parts: KeyError, struct.error, netaddr's.
        raise EntryRefused(
            f"the match {match!r} cannot be encoded: {reason(error)}"
        ) from error
    _MATCH_HEADER.pack_into(
        buffer,
        0,
        ofp.OFPMT_OXM,
        len(buffer),
    )
    return bytes(buffer) + bytes(-len(buffer) % 8)


def group_message(
    datapath: Any,
    command: int,
    group: int,
    outputs: tuple[int, ...],
    xid: int,
) -> bytes:
    """The group-mod of a select group with these ports."""
    # A bucket whose port has no link is skipped.
    buckets = [
        parser.OFPBucket(
            1,
            port,
            ofp.OFPG_ANY,
            [parser.OFPActionOutput(port)],
        )
        for port in outputs
    ]
    message = parser.OFPGroupMod(
        datapath,
        command,
        ofp.OFPGT_SELECT,
        group,
        buckets,
    )
    message.set_xid(xid)
    message.serialize()
    return bytes(message.buf)


def group_ports(described: Any) -> tuple[int, ...]:
    """The ports of a group's description, if it is a select group like Patchlight's."""
    actions = [bucket.actions for bucket in described.buckets]
    plain = described.type == ofp.OFPGT_SELECT and all(
        [each.type for each in of_one] == [ofp.OFPAT_OUTPUT]
        for of_one in actions
    )
    return tuple(each.port for (each,) in actions) if plain else ()


@lru_cache(maxsize=4096)
def _instruction_bytes(
    outputs: tuple[int, ...], group: int | None = None
) -> bytes:
    if not outputs:
        return b""
    buffer = bytearray()
    try:
        # The controller gets the whole frame; other ports ignore the number.
        whole = {ofp.OFPP_CONTROLLER: ofp.OFPCML_NO_BUFFER}
        actions = [
            parser.OFPActionOutput(port, whole.get(port, 0))
            for port in outputs
        ]
        actions = actions if group is None else [parser.OFPActionGroup(group)]
        parser.OFPInstructionActions(
            ofp.OFPIT_APPLY_ACTIONS, actions
        ).serialize(buffer, 0)
    except Exception as error:
        raise EntryRefused(
            f"the output ports {outputs} cannot be encoded: {reason(error)}"
        ) from error
    return bytes(buffer)


def groups_of(stats: Any) -> list[int]:
    """The groups to which a flow entry leads."""
    actions = (
        a for each in stats.instructions for a in getattr(each, "actions", ())
    )
    return [
        action.group_id for action in actions if action.type == ofp.OFPAT_GROUP
    ]


def entry_of(stats: Any, groups: Groups = MappingProxyType({})) -> FlowEntry:
    """The flow entry in a switch's description.

    An entry with the mark but other instructions gets a cookie without the low bits: it differs
    from all wanted ones, and is replaced.
    """
    actions = [
        a for each in stats.instructions for a in getattr(each, "actions", ())
    ]
    kinds = (
        {each.type for each in stats.instructions},
        {each.type for each in actions},
    )
    plain = kinds[0] <= {ofp.OFPIT_APPLY_ACTIONS} and kinds[1] <= {
        ofp.OFPAT_OUTPUT
    }
    spread = kinds == ({ofp.OFPIT_APPLY_ACTIONS}, {ofp.OFPAT_GROUP})
    if spread:
        outputs = groups.get(actions[-1].group_id, ())
        plain = bool(outputs) and len(actions) == 1
    else:
        outputs = tuple(action.port for action in actions) if plain else ()
    return FlowEntry(
        table=stats.table_id,
        priority=stats.priority,
        match=Match(dict(stats.match.items())),
        outputs=outputs,
        cookie=stats.cookie if plain else stats.cookie & COOKIE_MASK,
        idle_timeout_s=stats.idle_timeout,
        hard_timeout_s=stats.hard_timeout,
        spread=spread,
    )


def error_text(message: Any) -> str:
    """A switch's error in OpenFlow's terms: ``OFPET_BAD_MATCH: OFPBMC_BAD_PREREQ``."""
    if message.type == ofp.OFPET_EXPERIMENTER:
        return f"experimenter error {message.experimenter:#x}, type {message.exp_type}"
    kind = ofp.ofp_error_type_to_str(message.type)
    return f"{kind}: {ofp.ofp_error_code_to_str(message.type, message.code)}"
