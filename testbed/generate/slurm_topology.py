"""Reads Slurm's topology.conf and topology.yaml as plants: switches over switches over nodes."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from patchlight.testbed.errors import BadInput
from patchlight.testbed.generate.plant import (
    Cable,
    Plant,
    PlantDevice,
    PlantPort,
    wrong_shape,
)

_MOST_NODES = 65_536
_PAIR = re.compile(r"(\w+)\s*=\s*(\S+)")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True)
class _Switch:
    """A switch with the nodes or the switches below it."""

    name: str
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


class _Form(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _SwitchForm(_Form):
    switch: str
    nodes: str = ""
    children: str = ""


class _BlockForm(_Form):
    block: str
    nodes: str = ""


class _Tree(_Form):
    switches: list[_SwitchForm]


class _Blocks(_Form):
    blocks: list[_BlockForm]


class _TopologyForm(_Form):
    topology: str = "lab"
    cluster_default: bool = False
    tree: _Tree | None = None
    block: _Blocks | None = None


def read_topology_conf(
    text: str,
    what: str,
    gpus: int,
) -> Plant:
    """The plant of a ``topology.conf``; each node has ``gpus`` GPUs with a NIC each.

    Each switch of a tree is a packet switch, each block too. Raises ``BadInput`` for files with
    ``Include``, unknown switches, and nodes of two switches.
    """
    switches = []
    blocks = []
    for number, line in enumerate(_lines(text), 1):
        pairs = {key.lower(): value for key, value in _PAIR.findall(line)}
        where = f"{what}:{number}"
        if line.split()[:1] and line.split()[0].lower() == "include":
            raise BadInput(
                f"{where}: the file includes another file",
                hint="give Patchlight the file with all switches",
            )
        if "switchname" in pairs:
            switches.append(
                _Switch(
                    pairs["switchname"],
                    hosts(pairs.get("nodes", ""), where),
                    hosts(pairs.get("switches", ""), where),
                )
            )
        elif "blockname" in pairs:
            nodes = hosts(pairs.get("nodes", ""), where)
            blocks.append(_Switch(pairs["blockname"], nodes))
        elif line and "blocksizes" not in pairs:
            raise BadInput(
                f"{where}: {line!r} is not a line of topology.conf: expected SwitchName=… or "
                "BlockName=…"
            )
    return _plant(switches or blocks, what, gpus)


def read_topology_yaml(
    document: Any,
    what: str,
    gpus: int,
) -> Plant:
    """The plant of a ``topology.yaml``: of its default topology, or of the first one."""
    try:
        several = TypeAdapter(list[_TopologyForm]).validate_python(document)
    except ValidationError as error:
        raise wrong_shape(what, error) from error
    usable = [form for form in several if form.tree or form.block]
    usable.sort(key=lambda form: not form.cluster_default)
    if not usable:
        raise BadInput(f"{what}: it has no tree and no blocks")
    first = usable[0]
    if first.tree is not None:
        switches = [
            _Switch(
                form.switch,
                hosts(form.nodes, what),
                hosts(form.children, what),
            )
            for form in first.tree.switches
        ]
    else:
        switches = [
            _Switch(form.block, hosts(form.nodes, what))
            for form in (first.block.blocks if first.block else ())
        ]
    plant = _plant(switches, what, gpus)
    others = tuple(f"the topology {form.topology}" for form in usable[1:])
    return Plant(
        plant.name,
        plant.devices,
        plant.cables,
        (*plant.left_out, *others),
    )


def hosts(text: str, where: str) -> tuple[str, ...]:
    """A hostlist of Slurm: ``node[01-03,7],login`` → node01, node02, node03, node7, login."""
    found: list[str] = []
    for part in _commas(text, where):
        pieces: list[Sequence[str]] = []
        last = 0
        for match in _BRACKETS.finditer(part):
            pieces.append((part[last : match.start()],))
            pieces.append(tuple(_numbers(match[1], part, where)))
            last = match.end()
        pieces.append((part[last:],))
        found += ("".join(names) for names in product(*pieces))
        if len(found) > _MOST_NODES:
            raise BadInput(f"{where}: more than {_MOST_NODES} names")
    return tuple(found)


def _lines(text: str) -> Iterator[str]:
    """Lines without comments, those that end with a backslash joined to the next."""
    before = ""
    for line in text.splitlines():
        whole = before + line.partition("#")[0].rstrip()
        if whole.endswith("\\"):
            before = whole[:-1]
            yield ""
            continue
        before = ""
        yield whole.strip()


def _commas(text: str, where: str) -> Iterator[str]:
    """The parts of a list, split at commas outside brackets."""
    depth = 0
    part = ""
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            break
        if letter == "," and not depth:
            yield part
            part = ""
        else:
            part += letter
    if depth:
        raise BadInput(
            f"{where}: {text!r} is not a list of names: expected one like node[1-4],login"
        )
    if part:
        yield part


def _numbers(
    text: str,
    part: str,
    where: str,
) -> Iterator[str]:
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece)
        first = int(match[1]) if match else 1
        last = int(match[2] or match[1]) if match else 0
        if match is None or last < first or last - first >= _MOST_NODES:
            raise BadInput(
                f"{where}: {part!r} is not a list of names: expected one like node[1-4]"
            )
        for number in range(first, last + 1):
            yield f"{number:0{len(match[1])}d}"


def _plant(
    switches: Sequence[_Switch],
    what: str,
    gpus: int,
) -> Plant:
    known = {switch.name: switch for switch in switches}
    if len(known) != len(switches):
        raise BadInput(f"{what}: two switches have one name")
    above: dict[str, str] = {}
    ports: dict[str, list[str]] = {name: [] for name in known}
    cables = []
    left_out = []
    nics = [f"nic{n}" for n in range(gpus)]
    for switch in known.values():
        for name in (*switch.switches, *switch.nodes):
            if name in switch.switches and name not in known:
                raise BadInput(
                    f"{what}: switch {switch.name} has {name} below it, which has no line"
                )
            if name in above and name not in known:
                left_out.append(
                    f"node {name} under {switch.name}: it is under {above[name]}"
                )
                continue
            above.setdefault(name, switch.name)
            ends = [str(len(ports[name]) + 1)] if name in known else nics
            for end in ends:
                port = str(len(ports[switch.name]) + 1)
                ports[switch.name].append(port)
                cables.append(
                    Cable(PlantPort(name, end), PlantPort(switch.name, port))
                )
            if name in known:
                ports[name] += ends
    devices = [
        PlantDevice(
            name,
            "server",
            tuple(nics),
            gpus,
            gpu_of={nic: n for n, nic in enumerate(nics)},
        )
        for name in above
        if name not in known
    ]
    devices += [
        PlantDevice(name, "switch", tuple(names))
        for name, names in ports.items()
    ]
    return Plant("slurm", tuple(devices), tuple(cables), tuple(left_out))
