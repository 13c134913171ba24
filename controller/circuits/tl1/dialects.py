"""How each vendor's TL1 differs, as data: command templates and patterns.

No vendor's TL1 manual was at hand; the built-in tables follow third-party drivers and
captured sessions. Where a unit's firmware says it differently, correct the table without
touching code: put a TOML file named after the driver (``calient-tl1.toml``) in a directory
and name that directory in ``PATCHLIGHT_DIALECTS``. Its keys replace those below.
"""

from __future__ import annotations

import difflib
import os
import re
import string
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from testbed.errors import BadInput

DIRECTORY_VARIABLE = "PATCHLIGHT_DIALECTS"


@dataclass(frozen=True)
class SessionDialect:
    """What logging in and staying logged in takes.

    Templates may name ``{ctag}``, ``{user}`` and ``{password}``. Patterns are searched,
    without regard to case, in the words of a denial.
    """

    login: str = "ACT-USER::{user}:{ctag}::{password};"
    logout: str = "CANC-USER::{user}:{ctag};"
    keep_alive: str = "RTRV-HDR:::{ctag};"
    already_logged_in: str = r"already logged in"
    not_logged_in: str = r"login not active|\bPLNA\b"


@dataclass(frozen=True)
class CircuitDialect(SessionDialect):
    """What a Calient-like cross-connect table takes.

    ``{src}`` and ``{dst}`` are port AIDs, ``{conn}`` is the connection's id (``1.1.1>1.1.2``,
    or with ``-`` where it is two-way), ``{group}`` and ``{connname}`` what the device holds
    of it, ``{kind}`` is ``1WAY`` or ``2WAY``, ``{conns}`` is a list of ids. Patterns are
    matched against one quoted line of a reply each and name their groups as below.
    """

    enter: str = "ENT-CRS::{src},{dst}:{ctag}::{group},{kind};"
    activate: str = "ACT-CRS::{src},{dst}:{ctag}::{conn},{group};"
    deactivate: str = "CANC-CRS::{src},{dst}:{ctag}::{conn},{group};"
    delete: str = "DLT-CRS::{src},{dst}:{ctag}::,{group},{connname};"
    enter_bulk: str = "ENT-CRS-BULK::{conns}:{ctag};"
    delete_bulk: str = "DLT-CRS-BULK::{conns}:{ctag};"
    retrieve_all: str = "RTRV-CRS:::{ctag}::ALL;"
    retrieve_one: str = "RTRV-CRS::{src},{dst}:{ctag}::{conn};"
    ports: str = "RTRV-PORT::0:{ctag};"
    power_all: str = "RTRV-PORT-SUM::0:{ctag};"
    power_one: str = "RTRV-PORT-SUM::{port}:{ctag};"
    identity: str = "RTRV-NE:::{ctag};"
    group: str = "SYSTEM"
    bulk: bool = True
    bulk_separator: str = "&"
    bulk_limit: int = 64
    vendor: str = "Calient"
    circuit_line: str = (
        r"[^:]*:SRCPORT=(?P<src>[^,]*),DSTPORT=(?P<dst>[^,]*),GRPNAME=(?P<group>[^,]*),"
        r"CONNNAME=(?P<name>[^,]*),CONNTYPE=(?P<kind>[12])WAY.*?,"
        r"AS=(?P<AS>[^,]*),OS=(?P<OS>[^,]*),OC=(?P<OC>[^,]*)"
    )
    port_line: str = (
        r"(?P<port>[\d.]+):.*?INAS=(?P<in_AS>[^,]*),INOS=(?P<in_OS>[^,]*),INOC=(?P<in_OC>[^,]*),"
        r".*?OUTAS=(?P<out_AS>[^,]*),OUTOS=(?P<out_OS>[^,]*),OUTOC=(?P<out_OC>[^,]*)"
    )
    power_line: str = r"(?P<port>[\d.]+):.*?INPWR=(?P<in>[^,]*),OUTPWR=(?P<out>[^,]*)"
    identity_line: str = (
        r"(?P<name>[^:]*):SERIALNUMBER=(?P<serial>[^,]*),SWPACKAGE=(?P<software>[^,]*),"
        r".*?CHASSISTYPE=(?P<model>[^,]*)"
    )
    # A circuit is up in this state, failed for good in the next, parked (entered but not
    # activated) in the last: patterns for "AS,OS,OC".
    up: str = r"IS,IS,OK"
    failed: str = r"[^,]*,[^,]*,(FAIL|NOHW)"
    parked: str = r"UMA,.*"
    port_failed: str = r"[^,]*,[^,]*,(FAIL|NOHW)"
    port_absent: str = r"OOS-NP,.*"
    port_locked: str = r"(UMA|OOS).*"
    no_such_circuit: str = r"no such|not found|does not exist|invalid connection"


CALIENT = CircuitDialect()

_TEMPLATE_NAMES = {
    "ctag", "user", "password", "src", "dst", "conn", "connname", "group", "kind", "conns", "port"
}  # fmt: skip
_TEMPLATES = {
    "login", "logout", "keep_alive", "enter", "activate", "deactivate", "delete", "enter_bulk",
    "delete_bulk", "retrieve_all", "retrieve_one", "ports", "power_all", "power_one", "identity",
}  # fmt: skip
_PLAIN = {"group", "bulk_separator", "vendor"}


def corrected(driver: str, built_in: CircuitDialect) -> CircuitDialect:
    """The built-in table with the user's corrections for that driver, if there are any.

    Raises ``BadInput`` with every mistake of the file at once.
    """
    directory = os.environ.get(DIRECTORY_VARIABLE)
    if not directory:
        return built_in
    path = Path(directory) / f"{driver}.toml"
    if not path.exists():
        return built_in
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"reading the dialect {path}: {error}") from error
    mistakes = [m for key, value in table.items() if (m := _mistake(key, value, built_in))]
    if mistakes:
        raise BadInput(f"the dialect {path} has mistakes:\n  " + "\n  ".join(mistakes))
    return replace(built_in, **table)


def _mistake(key: str, value: object, built_in: CircuitDialect) -> str | None:
    known: Mapping[str, object] = {f.name: getattr(built_in, f.name) for f in fields(built_in)}
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1)
        return f"{key}: no such entry" + (f"; did you mean {near[0]}?" if near else "")
    if type(value) is not type(known[key]):
        return f"{key}: expected a {type(known[key]).__name__}, got {value!r}"
    if not isinstance(value, str):
        return None if value or isinstance(value, bool) else f"{key}: expected more than {value!r}"
    if key in _TEMPLATES:
        try:
            names = {name for _, name, _, _ in string.Formatter().parse(value) if name is not None}
        except ValueError as error:
            return f"{key}: {error}"
        wrong = names - _TEMPLATE_NAMES
        return f"{key}: no such field: {', '.join(sorted(wrong))}" if wrong else None
    if key in _PLAIN:
        return None
    try:
        groups = re.compile(value).groupindex
    except re.error as error:
        return f"{key}: not a pattern: {error}"
    missing = set(re.compile(str(known[key])).groupindex) - set(groups)
    return f"{key}: lacks the groups {', '.join(sorted(missing))}" if missing else None
