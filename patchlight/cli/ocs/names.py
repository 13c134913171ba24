"""Ports of circuit switches by number or by what is plugged in: in arguments and in map files."""

import csv
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import yaml
from click.shell_completion import CompletionItem

from patchlight.cli.connection import running_lab
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab import CircuitSwitch, Endpoint, Lab
from patchlight.testbed.portmap import PortMap


def port_number(lab: Lab, ocs: str, text: str) -> int:
    """A port of this OCS: ``17``, ``ocs1.17``, or the device port that is plugged into it."""
    name, number = port_anywhere(lab, text, lab.circuit_switch(ocs))
    if name != ocs:
        raise BadInput(
            f"{text} is not plugged into {ocs}: expected a port number or the name of a port "
            "that a fibre joins to it"
        )
    return number


def port_anywhere(lab: Lab, text: str, default: CircuitSwitch | None = None) -> tuple[str, int]:
    """Which port of which OCS a text means; a bare number is one of ``default``."""
    if text.isascii() and text.isdigit():
        if default is None:
            default = _only(lab, text)
        return default.name, _within(default, int(text))
    endpoint = lab.host_names[text].endpoint if text in lab.host_names else Endpoint.parse(text)
    switches = {c.name: c for c in lab.circuit_switches}
    if endpoint.device in switches:
        if not endpoint.port.isdigit():
            raise BadInput(f"{text} is not a port: expected {endpoint.device}.N")
        return endpoint.device, _within(switches[endpoint.device], int(endpoint.port))
    end = lab.fibre_ends.get(endpoint)
    if end is None or end[0].device not in switches:
        lab.device(endpoint.device)  # says so if there is no such device
        raise BadInput(f"{text} is not plugged into an OCS: no fibre joins it to one")
    return end[0].device, int(end[0].port)


def ports_by_switch(lab: Lab, texts: Iterable[str]) -> dict[str, list[int]]:
    """The ports that these texts mean, by OCS."""
    ports: dict[str, list[int]] = {}
    for text in texts:
        name, number = port_anywhere(lab, text)
        ports.setdefault(name, []).append(number)
    return ports


def cross_connect_text(lab: Lab, ocs: str, text: str, *, one_way: bool = False) -> str:
    """``3:17``, ``3-17``, ``3>17`` or the same with names, as the controller takes it.

    ``:`` and ``-`` mean both ways unless ``one_way``, ``>`` means one way. Names may hold a
    ``-`` themselves, so between names only ``:`` and ``>`` are taken.
    """
    for sign in ":>":
        left, joint, right = text.partition(sign)
        if joint:
            break
    else:
        left, joint, right = text.partition("-")
        if not (joint and left.strip().isdigit() and right.strip().isdigit()):
            raise BadInput(
                f"{text!r} is not a pair: expected A:B, like 3:17 or server1.nic0:tor1.1"
            )
    a, b = port_number(lab, ocs, left.strip()), port_number(lab, ocs, right.strip())
    return f"{a}{'>' if one_way or joint == '>' else '-'}{b}"


def plugged_in(lab: Lab, ocs: str, port: int) -> str:
    """What is plugged into a port of the OCS, or nothing."""
    end = lab.fibre_ends.get(Endpoint(ocs, str(port)))
    return str(end[0]) if end else ""


def _only(lab: Lab, text: str) -> CircuitSwitch:
    if len(lab.circuit_switches) != 1:
        names = ", ".join(c.name for c in lab.circuit_switches) or "none"
        raise BadInput(f"port {text} of which OCS? lab {lab.name} has {names}: say OCS.{text}")
    return lab.circuit_switches[0]


def _within(switch: CircuitSwitch, number: int) -> int:
    if not 1 <= number <= switch.ports:
        raise BadInput(f"{switch.name} has ports 1–{switch.ports}, not {number}")
    return number


# -- completion in the shell -------------------------------------------------------------------

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _complete(candidates: Callable[[Lab, click.Context, str], Iterable[str]]) -> Complete:
    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            lab = running_lab(context.params.get("lab_name"))
        except PatchlightError:
            return []  # no lab, no names; an error would land in the user's prompt
        names = dict.fromkeys(candidates(lab, context, incomplete))
        return [CompletionItem(text) for text in names if text.startswith(incomplete)]

    return complete


def _port_names(lab: Lab, ocs: str | None) -> Iterator[str]:
    """What is plugged into this OCS (or any), by its own name."""
    switches = {ocs} if ocs else {c.name for c in lab.circuit_switches}
    for end, (other, _) in lab.fibre_ends.items():
        if other.device in switches:
            yield str(end)


def _pairs(lab: Lab, context: click.Context, incomplete: str) -> Iterator[str]:
    names = list(_port_names(lab, context.params.get("name")))
    left, colon, _ = incomplete.partition(":")
    if colon:
        yield from (f"{left}:{name}" for name in names if name != left)
    else:
        yield from (f"{name}:" for name in names)


complete_switch = _complete(lambda lab, *_: (c.name for c in lab.circuit_switches))
complete_pair = _complete(_pairs)
complete_port = _complete(lambda lab, context, _: _port_names(lab, context.params.get("name")))
complete_any_port = _complete(
    lambda lab, *_: (
        name
        for end, (other, _fibre) in lab.fibre_ends.items()
        if other.device in {c.name for c in lab.circuit_switches}
        for name in (str(end), str(other))
    )
)


_ONE_WAY = {"one-way", "oneway", "1way", ">"}
_BOTH_WAYS = {"both", "duplex", "2way", "-", ""}


def read_map_file(path: str, lab: Lab) -> dict[str, list[str]]:
    """The cross-connects that a file asks for, by OCS (``-``: standard input).

    YAML or JSON: ``{ocs1: [1-7, 2>8, server1.nic0:tor1.1]}``, also as ``patchlight ocs show
    --json`` prints it; without the OCS's name where the lab has one. CSV, one a line: ``OCS,A,B``
    or ``A,B``, and as a last column ``one-way`` where it is. ``BadInput`` lists every mistake.
    """
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"reading the map {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"reading the map {path}: it is no UTF-8 text ({error.reason})") from error
    rows = _csv_rows(path, text) if path.endswith(".csv") else _yaml_rows(path, text, lab)
    mistakes: list[str] = []
    maps: dict[str, list[str]] = {}
    for where, ocs, pair, one_way in rows:
        try:
            name = lab.circuit_switch(ocs or _lone_name(lab)).name
            if pair is None:
                maps.setdefault(name, [])
                continue
            asked = cross_connect_text(lab, name, pair, one_way=one_way)
            # Together with those before it, so that the line that clashes is named.
            PortMap.parse([*maps.get(name, []), asked])
            maps.setdefault(name, []).append(asked)
        except BadInput as error:
            mistakes.append(f"{where}: {error.message}")
    if mistakes:
        raise BadInput("\n".join(mistakes))
    return maps


# Where it stands, OCS (empty: the only one), pair (``None``: this OCS is to have none), one way.
_Row = tuple[str, str, str | None, bool]


def _yaml_rows(path: str, text: str, lab: Lab) -> list[_Row]:
    try:
        document: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadInput(f"{path}: {error}") from error
    by_switch = {"": document} if isinstance(document, list) else document
    if not isinstance(by_switch, dict):
        raise BadInput(f"{path}: expected cross-connects by OCS, like 'ocs1: [1-7, 2>8]'")
    rows: list[_Row] = []
    for ocs, given in by_switch.items():
        pairs = given.get("map") if isinstance(given, dict) else given
        if not isinstance(pairs, list) or not all(isinstance(p, str) for p in pairs):
            # YAML reads a bare 3:17 as a number in base sixty.
            raise BadInput(
                f'{path}: {ocs or "the list"}: expected a list of texts, like [1-7, 2>8, "3:17"]'
            )
        rows += [
            (f"{path}: {ocs or 'item'} {n}", str(ocs), p, False) for n, p in enumerate(pairs, 1)
        ]
        if not pairs:
            rows.append((f"{path}: {ocs}", str(ocs), None, False))
    return rows


def _csv_rows(path: str, text: str) -> list[_Row]:
    rows: list[_Row] = []
    for number, cells in enumerate(csv.reader(io.StringIO(text)), 1):
        row = [cell.strip() for cell in cells]
        if not any(row) or row[0].startswith("#") or {"from", "to"} <= {c.lower() for c in row}:
            continue
        where = f"{path}:{number}"
        way = row.pop().lower() if row[-1].lower() in _ONE_WAY | _BOTH_WAYS else ""
        if len(row) not in (2, 3):
            raise BadInput(f"{where}: expected OCS,A,B or A,B, and maybe 'one-way' after it")
        ocs, a, b = row if len(row) == 3 else ("", *row)
        rows.append((where, ocs, f"{a}:{b}", way in _ONE_WAY))
    return rows


def _lone_name(lab: Lab) -> str:
    if len(lab.circuit_switches) != 1:
        raise BadInput("say which OCS: the lab does not have just one")
    return lab.circuit_switches[0].name
