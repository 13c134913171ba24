"""How each vendor's TL1 differs, as data: command templates and patterns.

See ``patchlight.controller.circuits.dialects`` for how a user corrects one.
"""

from dataclasses import dataclass
from typing import ClassVar

from patchlight.controller.circuits.dialects import (
    AnyPolatisDialect,
    Dialect,
    NumberedDialect,
    Pattern,
    Template,
)


@dataclass(frozen=True)
class SessionDialect(Dialect):
    """What logging in and staying logged in takes, and the list of alarms.

    Templates may name ``{ctag}``, ``{user}`` and ``{password}``. Patterns are searched,
    without regard to case, in the words of a denial; ``alarm_line`` matches the beginning of
    one quoted line. Without ``alarms`` the device has no such list.
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset({"ctag", "user", "password"})

    login: Template = "ACT-USER::{user}:{ctag}::{password};"
    logout: Template = "CANC-USER::{user}:{ctag};"
    keep_alive: Template = "RTRV-HDR:::{ctag};"
    already_logged_in: Pattern = r"already logged in"
    not_logged_in: Pattern = r"login not active|\bPLNA\b"
    alarms: Template = "RTRV-ALM-ALL:::{ctag};"
    alarm_line: Pattern = (
        r"(?P<subject>[^,:]*)(?:,[^:]*)?:(?P<severity>CR|MJ|MN|NA|NR)?,?(?P<condition>[^,:]*)"
    )


@dataclass(frozen=True)
class CircuitDialect(SessionDialect):
    """What a Calient-like cross-connect table takes.

    ``{src}`` and ``{dst}`` are port AIDs, ``{conn}`` is the connection's id (``1.1.1>1.1.2``,
    or with ``-`` where it is two-way), ``{group}`` and ``{connname}`` what the device holds
    of it, ``{kind}`` is ``1WAY`` or ``2WAY``, ``{conns}`` is a list of ids. Patterns are
    matched against one quoted line of a reply each and name their groups as below.
    """

    FIELDS: ClassVar[frozenset[str]] = SessionDialect.FIELDS.union(
        ["src", "dst", "conn", "connname", "group", "kind", "conns", "port"]
    )

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
        # Names are anybody's, commas and line ends included; a line in which CONNTYPE stands
        # twice cannot be read, for a name could then tell another state of the circuit.
        r"(?s)[^:]*:SRCPORT=(?P<src>[^,]*),DSTPORT=(?P<dst>[^,]*),"
        r"GRPNAME=(?P<group>[^,]*(?:,(?!CONNNAME=)[^,]*)*),"
        r"CONNNAME=(?P<name>[^,]*(?:,(?!CONNTYPE=)[^,]*)*),"
        r"CONNTYPE=(?P<kind>[12])WAY(?!.*,CONNTYPE=).*?,"
        r"AS=(?P<AS>[^,]*),OS=(?P<OS>[^,]*),OC=(?P<OC>[^,]*)"
    )
    port_line: Pattern = (
        r"(?P<port>[\d.]+):.*?INAS=(?P<in_AS>[^,]*),INOS=(?P<in_OS>[^,]*),INOC=(?P<in_OC>[^,]*),"
        r".*?OUTAS=(?P<out_AS>[^,]*),OUTOS=(?P<out_OS>[^,]*),OUTOC=(?P<out_OC>[^,]*)"
    )
    power_line: Pattern = r"(?P<port>[\d.]+):.*?INPWR=(?P<in>[^,]*),OUTPWR=(?P<out>[^,]*)"
    port_circuits: Pattern = (
        r"(?s)(?P<port>[\d.]+):.*?CONNNAME1=(?P<first>[^,]*),CONNSTATE1=(?P<first_state>[^,]*),"
        r"CONNNAME2=(?P<second>[^,]*),CONNSTATE2=(?P<second_state>[^,]*)"
    )
    no_circuit: Pattern = r"NONE|"
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


@dataclass(frozen=True)
class ListDialect(SessionDialect, NumberedDialect):
    """What a device takes that makes cross-connects in one step, in lists.

    ``{ins}`` and ``{outs}`` are the device's port numbers joined with ``list_separator``,
    ``{ports}`` is one, such a list, or a range joined with ``range_separator``. Patterns
    match the beginning of one quoted line of a reply each and name their groups as below.
    """

    FIELDS: ClassVar[frozenset[str]] = SessionDialect.FIELDS | {"ins", "outs", "ports"}

    enter: Template = "ENT-PATCH::{ins},{outs}:{ctag}:;"
    delete: Template = "DLT-PATCH::{ins}:{ctag}:;"
    retrieve: Template = "RTRV-PATCH:::{ctag}:;"
    size: Template = "RTRV-EQPT::SYSTEM:{ctag}:::PARAMETER=SIZE;"
    identity: Template = "RTRV-NETYPE:::{ctag}:;"
    list_separator: str = "&"
    range_separator: str = "&&"
    list_limit: int = 256
    vendor: str = ""
    circuit_line: Pattern = r"(?P<in>[0-9]{1,9}),(?P<out>[0-9]{1,9})(?![0-9])"
    size_line: Pattern = r"SYSTEM:SIZE=(?P<ins>\d{1,9})x(?P<outs>\d{1,9})"
    port_line: Pattern = r"(?P<port>[0-9]{1,9}):(?P<state>\w+)"
    port_ready: Pattern = r"OPEN"


@dataclass(frozen=True)
class PolatisDialect(ListDialect, AnyPolatisDialect):
    """What a Polatis switch takes; its shutters are what switches a port off."""

    vendor: str = "Polatis"
    serial: Template = "RTRV-INV::OCS:{ctag}:;"
    ports: Template = "RTRV-PORT-SHUTTER::{ports}:{ctag}:;"
    power: Template = "RTRV-PORT-POWER::{ports}:{ctag}:;"
    identity_line: Pattern = (
        r"(?P<vendor>[^,]*),(?P<model>[^,]*),(?P<type>[^,]*),(?P<software>[^,]*)"
    )
    serial_line: Pattern = r".*\bSN=(?P<serial>\w+)"
    any_to_any: Pattern = r"\d+xCC\b"
    port_closed: Pattern = r"CLOSED"
    power_line: Pattern = r"(?P<port>[0-9]{1,9}):(?P<power>[^,]*)"


@dataclass(frozen=True)
class GlimmerglassDialect(ListDialect):
    """What a Glimmerglass switch takes. ``up`` and ``failed`` match ``CONNSTATE,CONNCAUSE``.

    Without light at its input a circuit cannot be fine-tuned, and the switch says *fault*
    once its timer has run out; the mirrors stand all the same, so that it counts as up.
    """

    enter: Template = "ent-crs-fiber::{ins},{outs}:{ctag}:::opmode=sync;"
    delete: Template = "dlt-crs-fiber::{ins},{outs}:{ctag}:::opmode=sync;"
    retrieve: Template = "rtrv-crs-fiber::all:{ctag};"
    size: Template = "rtrv-system-info:::{ctag};"
    identity: Template = "rtrv-system-info:::{ctag};"
    ports: Template = "rtrv-cfg-fiber::all:{ctag};"
    vendor: str = "Glimmerglass"
    in_base: int = 10000
    out_base: int = 20000
    circuit_line: Pattern = (
        # As with Calient's: a name must not tell another output or state.
        r"(?s)[^:]*:IPORTID=(?P<in>[0-9]{1,9}),(?:(?!OPORTID=).)*OPORTID=(?P<out>[0-9]{1,9}),"
        r"(?!.*OPORTID=)(?:(?!CONNSTATE=).)*CONNSTATE=(?P<state>[^,]*),(?!.*CONNSTATE=)"
        r"CONNCAUSE=(?P<cause>[^,]*),INPWR=(?P<inpwr>[^,]*),OUTPWR=(?P<outpwr>[^,]*)"
    )
    size_line: Pattern = r".*LicensedPortMatrix=(?P<ins>\d{1,9})x(?P<outs>\d{1,9})"
    identity_item: Pattern = (
        r"[^:]*:(?:ChassisType=(?P<model>.*)|SerialNumber=(?P<serial>.*)"
        r"|SoftwareActiveVersion=(?P<software>.*))"
    )
    port_line: Pattern = (
        r"(?s)[^:]*:PORTID=(?P<port>[0-9]{1,9}),.*?PORTHEALTH=(?P<state>\w+)(?!.*,PORTHEALTH=)"
    )
    port_ready: Pattern = r"good"
    up: Pattern = r"steady,.*|fault,initial_connection_timer_expired"
    failed: Pattern = r"fault,.*"
    dark_dbm: float = -45.0


POLATIS = PolatisDialect()
GLIMMERGLASS = GlimmerglassDialect()
