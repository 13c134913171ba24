"""Chakra execution traces as files: ``.et``, and the JSON that ``chakra_jsonizer`` makes of them.

The schema is ``et_def.proto`` of MLCommons Chakra: a file for each rank, named ``PREFIX.RANK.et``,
with a ``GlobalMetadata`` and then ``Node`` messages, each behind its length. Only the fields that
are used here are read. The JSON of Chakra's feeder, one object with a ``workload_graph``, is read
too. What PyTorch records itself has to be converted first, and is refused.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from patchlight.testbed.errors import BadInput, PackageMissing, nearest

NODE_TYPES = (
    "INVALID_NODE",
    "METADATA_NODE",
    "MEM_LOAD_NODE",
    "MEM_STORE_NODE",
    "COMP_NODE",
    "COMM_SEND_NODE",
    "COMM_RECV_NODE",
    "COMM_COLL_NODE",
    "STORAGE_NODE",
    "BATCH_NODE",
    "CHECKPOINT_NODE",
)
"""By their numbers in the schema."""
_NUMBERED = dict(enumerate(NODE_TYPES))
_CONVERT = (
    "merge PyTorch's execution trace and its Kineto trace with chakra_trace_link, then make an .et "
    "file of the result with chakra_converter"
)
_FOREIGN = {
    "traceEvents": "a Kineto trace of PyTorch's profiler",
    "nodes": "an execution trace of PyTorch, without the times on GPUs",
}
_MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_OF_A_RANK = re.compile(r"(.+)\.(\d+)\.(et|json)")
# Field numbers of the values of an attribute that are no lists, by their protobuf type.
_VALUES = {
    "double": 3,
    "float": 5,
    "int32": 7,
    "int64": 9,
    "uint32": 11,
    "uint64": 13,
}
_VALUES |= {
    "sint32": 15,
    "sint64": 17,
    "fixed32": 19,
    "fixed64": 21,
    "sfixed32": 23,
}
_VALUES |= {"sfixed64": 25, "bool": 27, "string": 29}


class TraceNode(NamedTuple):
    """A node of a rank's trace, with the numbers of those that it waits for.

    ``place`` names file and node in messages. ``starts_us`` is 0 where the trace does not say it.
    """

    place: str
    number: int
    type: str
    data: tuple[int, ...]
    control: tuple[int, ...]
    starts_us: int
    duration_s: float
    attributes: Mapping[str, Any]

    @property
    def on_cpu(self) -> bool:
        """Whether it is the processor's; numbers of 64 bits are text in JSON."""
        return str(self.attributes.get("is_cpu_op")).lower() in ("true", "1")

    def whole(self, name: str) -> int:
        """An attribute that is a number of 0 or more; ``BadInput`` if it is none."""
        try:
            value = int(self.attributes[name])
        except KeyError as error:
            raise BadInput(
                f"{self.place}: a {self.type} without {name}"
            ) from error
        except (ValueError, TypeError, OverflowError) as error:
            raise BadInput(
                f"{self.place}: {name} is {self.attributes[name]!r}: expected a number"
            ) from error
        if value < 0:
            raise BadInput(
                f"{self.place}: {name} is {value}: expected 0 or more"
            )
        return value


def files_of_ranks(prefix: Path) -> list[Path]:
    """The traces ``PREFIX.0.et``, ``PREFIX.1.et`` … of a job's ranks, or ``PREFIX.0.json`` ….

    One of these files stands for all of them. ``BadInput`` if there is none, if both kinds are
    there, or if a rank's is missing between others.
    """
    folder = prefix.parent
    name = prefix.name
    if found := _OF_A_RANK.fullmatch(name):
        name = found[1]
    by_suffix: dict[str, dict[int, Path]] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        of_rank = _OF_A_RANK.fullmatch(path.name)
        if (
            of_rank
            and of_rank[1] == name
            and (not found or of_rank[3] == found[3])
        ):
            by_suffix.setdefault(of_rank[3], {})[int(of_rank[2])] = path
    stem = folder / name
    if not by_suffix:
        raise BadInput(
            f"no Chakra trace {stem}.0.et or {stem}.0.json",
            hint="the files of a job's ranks are PREFIX.0.et, PREFIX.1.et …: give PREFIX",
        )
    if len(by_suffix) > 1:
        raise BadInput(
            f"both {stem}.RANK.et and {stem}.RANK.json exist",
            hint=f"name the file of one rank, like {stem}.0.et, to choose its kind",
        )
    [(suffix, files)] = by_suffix.items()
    if missing := sorted(set(range(max(files))) - set(files)):
        raise BadInput(
            f"{stem}.{missing[0]}.{suffix} is missing: rank {max(files)} has a trace"
        )
    return [files[rank] for rank in sorted(files)]


def read_rank(path: Path) -> list[TraceNode]:
    """The nodes of one rank's trace as it ran: by start time, then by number.

    ``BadInput`` for a file that cannot be read, has no nodes or is of another kind, and for a node
    that appears twice or has an unknown type.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
    is_json = path.suffix == ".json" or re.match(rb'\s*\{\s*"', content)
    raw = (
        _json_nodes(path, content) if is_json else _binary_nodes(path, content)
    )
    found: dict[int, TraceNode] = {}
    for node in raw:
        if node.number in found:
            raise BadInput(f"{node.place}: two nodes have this number")
        if node.type not in NODE_TYPES[1:]:
            raise BadInput(
                f"{node.place}: no type {node.type}: {nearest(node.type, NODE_TYPES[1:])}"
            )
        on_cpu = node.on_cpu and "comm_type" not in node.attributes
        if node.type == "COMM_COLL_NODE" and on_cpu:
            # The call that launches a collective: the collective is another node.
            node = node._replace(type="COMP_NODE")
        found[node.number] = node
    if not found:
        raise BadInput(
            f"{path} has no nodes: it is empty or not a Chakra trace"
        )
    return sorted(
        found.values(), key=lambda node: (node.starts_us, node.number)
    )


def _json_nodes(path: Path, content: bytes) -> Iterator[TraceNode]:
    """Objects one behind the other, the first of them the file's metadata; or a workload graph."""
    decoder = json.JSONDecoder()
    at = 0
    first = True
    try:
        text = content.decode("utf-8-sig").strip()
        while at < len(text):
            value, at = decoder.raw_decode(text, at)
            while at < len(text) and text[at].isspace():
                at += 1
            if not isinstance(value, dict):
                raise ValueError("expected an object")
            if not first:
                yield _of_json(path, value)
            elif "workload_graph" in value:
                yield from (
                    _of_graph(path, each) for each in value["workload_graph"]
                )
            elif foreign := [
                what for key, what in _FOREIGN.items() if key in value
            ]:
                raise BadInput(f"{path} is {foreign[0]}", hint=_CONVERT)
            elif other := sorted({*value} - {"version", "attr"}):
                raise ValueError(
                    f"its first object has {', '.join(other)[:80]}"
                )
            first = False
    except _MALFORMED as error:
        what = f"no {error}" if isinstance(error, KeyError) else error
        raise BadInput(
            f"{path} is not a Chakra trace in JSON, near character {at}: {what}",
            hint="create it from an .et file with chakra_jsonizer",
        ) from error


def _of_json(path: Path, value: Mapping[str, Any]) -> TraceNode:
    attributes = {
        each["name"]: next(
            (v for k, v in each.items() if k.lower().endswith("val")), None
        )
        for each in value.get("attr", ())
    }
    # Protobuf writes names as dataDeps or, on request, as data_deps.
    named = {key.replace("_", "").lower(): v for key, v in value.items()}
    # Numbers of 64 bits are text there, and what is 0 is left out.
    needs = [named.get(key, ()) for key in ("datadeps", "ctrldeps")]
    kind = str(value.get("type", NODE_TYPES[0]))
    times = [
        named.get(key, 0) for key in ("starttimemicros", "durationmicros")
    ]
    return _node(
        path,
        int(value.get("id", 0)),
        kind,
        needs,
        times,
        attributes,
    )


def _of_graph(path: Path, value: Mapping[str, Any]) -> TraceNode:
    """A node of a workload graph: its attributes stand beside its other keys."""
    needs = [value.get(key, ()) for key in ("data_deps", "ctrlDeps")]
    kind = _NUMBERED.get(value["NodeType"], "INVALID_NODE")
    return _node(
        path,
        int(value["Id"]),
        kind,
        needs,
        [0, value.get("runtime", 0)],
        value,
    )


def _node(
    path: Path,
    number: int,
    kind: str,
    needs: Any,
    times: Any,
    attributes: Mapping[str, Any],
) -> TraceNode:
    data, control = (tuple(dict.fromkeys(map(int, each))) for each in needs)
    starts_us, lasts_us = map(int, times)
    place = f"{path}: node {number}"
    if lasts_us < 0:
        raise BadInput(f"{place} lasts {lasts_us} µs: expected 0 or more")
    return TraceNode(
        place,
        number,
        kind,
        data,
        control,
        starts_us,
        lasts_us / 1e6,
        attributes,
    )


def _binary_nodes(path: Path, content: bytes) -> Iterator[TraceNode]:
    node_class, decode_error = _messages()
    at = 0
    first = True
    while at < len(content):
        length, at = _length(path, content, at)
        if at + length > len(content):
            raise BadInput(
                f"{path} ends within a message: the file is incomplete"
            )
        message = content[at : at + length]
        at = at + length
        if not first:
            node = node_class()
            try:
                node.ParseFromString(message)
            except decode_error as error:
                raise BadInput(
                    f"{path} is not a Chakra trace: {error}"
                ) from error
            needs = [node.data_deps, node.ctrl_deps]
            attributes = {
                each.name: getattr(each, which)
                for each in node.attr
                if (which := each.WhichOneof("value")) is not None
            }
            kind = _NUMBERED.get(node.type, str(node.type))
            times = [node.start_time_micros, node.duration_micros]
            yield _node(
                path,
                node.id,
                kind,
                needs,
                times,
                attributes,
            )
        elif message[:1] not in (
            b"",
            b"\x0a",
            b"\x12",
        ):  # The fields of the metadata.
            raise BadInput(
                f"{path} is not a Chakra trace: it does not begin with its metadata"
            )
        first = False


def _length(
    path: Path,
    content: bytes,
    at: int,
) -> tuple[int, int]:
    """A message's length, and where the message begins."""
    length = 0
    for place, byte in enumerate(content[at : at + 5]):
        length |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return length, at + place + 1
    raise BadInput(
        f"{path} is not a Chakra trace: there is no length at byte {at}"
    )


@cache
def _messages() -> tuple[Any, type[Exception]]:
    """The class of a node, and the error that it raises for other bytes."""
    try:
        schema: Any = import_module("google.protobuf.descriptor_pb2")
    except ImportError as error:
        raise PackageMissing(
            "a Chakra trace that chakra_jsonizer has not converted to JSON",
            error,
        ) from error
    pool: Any = import_module(
        "google.protobuf.descriptor_pool"
    ).DescriptorPool()
    factory: Any = import_module("google.protobuf.message_factory")
    field = schema.FieldDescriptorProto
    file = schema.FileDescriptorProto(
        name="et.proto",
        package="chakra",
        syntax="proto3",
    )
    attribute = file.message_type.add(name="Attribute")
    attribute.field.add(
        name="name",
        number=1,
        type=field.TYPE_STRING,
        label=1,
    )
    attribute.oneof_decl.add(name="value")
    for kind, number in _VALUES.items():
        code = getattr(field, f"TYPE_{kind.upper()}")
        attribute.field.add(
            name=kind,
            number=number,
            type=code,
            label=1,
            oneof_index=0,
        )
    node = file.message_type.add(name="Node")
    for name, number, code, label in (
        ("id", 1, field.TYPE_UINT64, 1),
        ("type", 3, field.TYPE_INT32, 1),  # An enumeration has the same bytes.
        ("ctrl_deps", 4, field.TYPE_UINT64, 3),
        ("data_deps", 5, field.TYPE_UINT64, 3),
        ("start_time_micros", 6, field.TYPE_UINT64, 1),
        ("duration_micros", 7, field.TYPE_UINT64, 1),
    ):
        node.field.add(
            name=name,
            number=number,
            type=code,
            label=label,
        )
    attributes = {"type": field.TYPE_MESSAGE, "type_name": ".chakra.Attribute"}
    node.field.add(
        name="attr",
        number=10,
        label=3,
        **attributes,
    )
    pool.Add(file)
    found = factory.GetMessageClass(pool.FindMessageTypeByName("chakra.Node"))
    return found, import_module("google.protobuf.message").DecodeError
