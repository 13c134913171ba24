"""How each vendor's TL1 differs, as data: command templates and patterns.

See ``controller.circuits.dialects`` for how a user corrects one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from controller.circuits.dialects import Dialect, Pattern, Template


@dataclass(frozen=True)
class SessionDialect(Dialect):
    """What logging in and staying logged in takes.

    Templates may name ``{ctag}``, ``{user}`` and ``{password}``. Patterns are searched,
    without regard to case, in the words of a denial.
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset({"ctag", "user", "password"})

    login: Template = "ACT-USER::{user}:{ctag}::{password};"
    logout: Template = "CANC-USER::{user}:{ctag};"
    keep_alive: Template = "RTRV-HDR:::{ctag};"
    already_logged_in: Pattern = r"already logged in"
    not_logged_in: Pattern = r"login not active|\bPLNA\b"


@dataclass(frozen=True)
class CircuitDialect(SessionDialect):
    """What a Calient-like cross-connect table takes.

    ``{src}`` and ``{dst}`` are port AIDs, ``{conn}`` is the connection's id (``1.1.1>1.1.2``,
    or with ``-`` where it is two-way), ``{group}`` and ``{connname}`` what the device holds
    of it, ``{kind}`` is ``1WAY`` or ``2WAY``, ``{conns}`` is a list of ids. Patterns are
    matched against one quoted line of a reply each and name their groups as below.
    """

    FIELDS: ClassVar[frozenset[str]] = SessionDialect.FIELDS | {
        "src", "dst", "conn", "connname", "group", "kind", "conns", "port"
    }  # fmt: skip

    enter: Template = "ENT-CRS::{src},{dst}:{ctag}::{group},{kind};"
    activate: Template = "ACT-CRS::{src},{dst}:{ctag}::{conn},{group};"
    deactivate: Template = "CANC-CRS::{src},{dst}:{ctag}::{conn},{group};"
    delete: Template = "DLT-CRS::{src},{dst}:{ctag}::,{group},{connname};"
    enter_bulk: Template = "ENT-CRS-BULK::{conns}:{ctag};"
    delete_bulk: Template = "DLT-CRS-BULK::{conns}:{ctag};"
    retrieve_all: Template = "RTRV-CRS:::{ctag}::ALL;"
    retrieve_one: Template = "RTRV-CRS::{src},{dst}:{ctag}::{conn};"
    ports: Template = "RTRV-PORT::0:{ctag};"
    power_all: Template = "RTRV-PORT-SUM::0:{ctag};"
    power_one: Template = "RTRV-PORT-SUM::{port}:{ctag};"
    identity: Template = "RTRV-NE:::{ctag};"
    group: str = "SYSTEM"
    bulk: bool = True
    bulk_separator: str = "&"
    bulk_limit: int = 64
    vendor: str = "Calient"
    circuit_line: Pattern = (
        r"[^:]*:SRCPORT=(?P<src>[^,]*),DSTPORT=(?P<dst>[^,]*),GRPNAME=(?P<group>[^,]*),"
        r"CONNNAME=(?P<name>[^,]*),CONNTYPE=(?P<kind>[12])WAY.*?,"
        r"AS=(?P<AS>[^,]*),OS=(?P<OS>[^,]*),OC=(?P<OC>[^,]*)"
    )
    port_line: Pattern = (
        r"(?P<port>[\d.]+):.*?INAS=(?P<in_AS>[^,]*),INOS=(?P<in_OS>[^,]*),INOC=(?P<in_OC>[^,]*),"
        r".*?OUTAS=(?P<out_AS>[^,]*),OUTOS=(?P<out_OS>[^,]*),OUTOC=(?P<out_OC>[^,]*)"
    )
    power_line: Pattern = r"(?P<port>[\d.]+):.*?INPWR=(?P<in>[^,]*),OUTPWR=(?P<out>[^,]*)"
    identity_line: Pattern = (
        r"(?P<name>[^:]*):SERIALNUMBER=(?P<serial>[^,]*),SWPACKAGE=(?P<software>[^,]*),"
        r".*?CHASSISTYPE=(?P<model>[^,]*)"
    )
    # A circuit is up in this state, failed for good in the next, parked (entered but not
    # activated) in the last: patterns for "AS,OS,OC".
    up: Pattern = r"IS,IS,OK"
    failed: Pattern = r"[^,]*,[^,]*,(FAIL|NOHW)"
    parked: Pattern = r"UMA,.*"
    port_failed: Pattern = r"[^,]*,[^,]*,(FAIL|NOHW)"
    port_absent: Pattern = r"OOS-NP,.*"
    port_locked: Pattern = r"(UMA|OOS).*"
    no_such_circuit: Pattern = r"no such|not found|does not exist|invalid connection"


CALIENT = CircuitDialect()
