"""Map files for ``patchlight ocs apply``: YAML, JSON or CSV, ports by number or by name."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Any

import yaml

from patchlight.cli.ocs.names import cross_connect_text
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab import Lab
from patchlight.testbed.portmap import PortMap

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
            name = lab.circuit_switch(ocs or _only(lab)).name
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


def _only(lab: Lab) -> str:
    if len(lab.circuit_switches) != 1:
        raise BadInput("say which OCS: the lab does not have just one")
    return lab.circuit_switches[0].name
