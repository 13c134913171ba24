"""Chakra execution traces as files, of nodes that a test makes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from patchlight.emulation.simulator.network.chakra_file import NODE_TYPES
from patchlight.emulation.simulator.network.chakra_job import COLLECTIVE_TYPES

Node = dict[str, Any]


def node(
    number: int,
    kind: str,
    needs: Sequence[int] = (),
    s: float = 0.0,
    **attr: Any,
) -> Node:
    """A node; ``starts`` (in microseconds) and ``control`` may be added to it."""
    return {
        "id": number,
        "type": kind,
        "needs": list(needs),
        "micros": round(s * 1e6),
        "attr": attr,
    }


def meets(
    number: int,
    what: str,
    size: int,
    needs: Sequence[int] = (),
    group: str = "",
) -> Node:
    attr: Node = {"comm_type": COLLECTIVE_TYPES.index(what), "comm_size": size}
    attr |= {"pg_name": group} if group else {}
    return node(number, "COMM_COLL_NODE", needs, **attr)


def varint(value: int) -> bytes:
    more = value >> 7
    return bytes([value & 0x7F | (0x80 if more else 0)]) + (
        varint(more) if more else b""
    )


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def binary(each: Mapping[str, Any]) -> bytes:
    """A node as the schema has it; needs as one packed list, and as repeated numbers."""
    message = field(1, each["id"]) + field(3, NODE_TYPES.index(each["type"]))
    message += field(2, b"a name") + field(
        5, b"".join(map(varint, each["needs"]))
    )
    message += b"".join(field(4, need) for need in each["needs"])
    message += b"".join(field(4, need) for need in each.get("control", ()))
    message += field(6, each["starts"]) if "starts" in each else b""
    message += field(7, each["micros"]) if each["micros"] else b""
    for name, value in each["attr"].items():
        text = isinstance(value, str)
        number = 27 if isinstance(value, bool) else 9
        inside = field(29, value.encode()) if text else field(number, value)
        message += field(10, field(1, name.encode()) + inside)
    return message


def as_json(each: Mapping[str, Any]) -> str:
    """As protobuf writes it: numbers of 64 bits as text, nothing for 0."""
    attr = [
        {"name": name, **_value(value)} for name, value in each["attr"].items()
    ]
    found: Node = {"type": each["type"], "attr": attr}
    found |= {"id": str(each["id"])} if each["id"] else {}
    found |= (
        {"dataDeps": [str(need) for need in each["needs"]]}
        if each["needs"]
        else {}
    )
    found |= (
        {"ctrlDeps": [str(need) for need in each["control"]]}
        if "control" in each
        else {}
    )
    found |= (
        {"startTimeMicros": str(each["starts"])} if "starts" in each else {}
    )
    found |= {"durationMicros": str(each["micros"])} if each["micros"] else {}
    return json.dumps(found, indent=2)


def _value(value: str | int) -> Node:
    if isinstance(value, str):
        return {"stringVal": value}
    return (
        {"boolVal": value}
        if isinstance(value, bool)
        else {"int64Val": str(value)}
    )


def written(
    folder: Path, ranks: Sequence[Sequence[Node]], suffix: str = ".json"
) -> list[Path]:
    files = [folder / f"job.{number}{suffix}" for number in range(len(ranks))]
    for file, nodes in zip(files, ranks, strict=True):
        if suffix == ".json":
            file.write_text(
                '{"version": "0.0.4"}' + "".join(map(as_json, nodes))
            )
        else:
            messages = [field(1, b"0.0.4"), *map(binary, nodes)]
            file.write_bytes(
                b"".join(varint(len(each)) + each for each in messages)
            )
    return files


def exchange(
    number: int, what: str, other: int, size: int, needs: Sequence[int] = ()
) -> Node:
    ends = {"SEND": "comm_dst", "RECV": "comm_src"}
    attr = {ends[what]: other, "comm_size": size}
    return node(number, f"COMM_{what}_NODE", needs, **attr)
