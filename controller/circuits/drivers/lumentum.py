"""The driver ``lumentum-netconf``: Lumentum ROADM whiteboxes over NETCONF (port 830).

The box has two switches: module 1 (mux) routes channels of its add ports to the line, module 2
(demux) those of the line to its drop ports. In a lab it is one wavelength switch whose port 1 is
the line and whose port *n* + 1 has the add and drop fibres *n*; or only the demux (one input) or
the mux (one output). Each entry is a connection of the model ``lumentum-ote-connection`` with a
free number on its module.

Requests follow those of other programs for such boxes. Tested with the emulated device only.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar
from xml.sax.saxutils import escape

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.dialect import (
    Bare,
    Dialect,
    Pattern,
    Template,
    filled,
)
from patchlight.controller.circuits.drivers.base import (
    WavelengthSessionDriver,
    power_dbm,
)
from patchlight.controller.circuits.drivers.table import Row
from patchlight.controller.circuits.protocols.netconf import NetconfClient
from patchlight.testbed.lab.ocs_drivers import NO_LINE
from patchlight.testbed.lab.spectrum import Channel, ChannelConnect

_ANCHOR_GHZ = 193_100.0
_STEP_GHZ = 6.25
_CONNECTION = 'xmlns="http://www.lumentum.com/lumentum-ote-connection"'


@dataclass(frozen=True)
class LumentumDialect(Dialect):
    """What a ROADM takes, as XML to fill in, and how it numbers its fibres.

    ``{inp}`` and ``{out}`` are numbers of fibres: ``line_in``, ``line_out``, or those of an add or
    drop port above ``add_base`` and ``drop_base``. ``{module}`` and ``{conn}`` number a connection;
    ``{first}`` and ``{last}`` are the edges of its channel in GHz.
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset(
        {
            "module",
            "conn",
            "first",
            "last",
            "attenuation",
            "inp",
            "out",
            "connections",
        }
    )

    list_limit: int = 96
    most_connections: int = 128
    mux: int = 1
    demux: int = 2
    line_in: int = 5101
    line_out: int = 4201
    add_base: int = 4100
    drop_base: int = 5200
    dark_dbm: float = -50.0
    vendor: str = "Lumentum"
    connections: Template = f"<connections {_CONNECTION}/>"
    connect: Template = (
        f"<connections {_CONNECTION}>{{connections}}</connections>"
    )
    connection: Template = (
        '<connection nc:operation="create">'
        "<dn>ne=1;chassis=1;card=1;module={module};connection={conn}</dn><config>"
        "<maintenance-state>in-service</maintenance-state><blocked>false</blocked>"
        "<start-freq>{first}</start-freq><end-freq>{last}</end-freq>"
        "<attenuation>{attenuation}</attenuation>"
        "<input-port-reference>ne=1;chassis=1;card=1;port={inp}</input-port-reference>"
        "<output-port-reference>ne=1;chassis=1;card=1;port={out}</output-port-reference>"
        "<custom-name>CH{conn}</custom-name></config></connection>"
    )
    disconnect: Template = (
        f"<delete-connection {_CONNECTION}>"
        "<dn>ne=1;chassis=1;card=1;module={module};connection={conn}</dn></delete-connection>"
    )
    identity: Template = (
        '<system-state xmlns="urn:ietf:params:xml:ns:yang:ietf-system"/>'
    )
    chassis: Template = '<chassis-list xmlns="http://www.lumentum.com/lumentum-ote-equipment"/>'
    ports: Template = (
        '<physical-ports xmlns="http://www.lumentum.com/lumentum-ote-port"/>'
    )
    dn: Pattern = r".*;module=(?P<module>\d{1,4});connection=(?P<conn>\d{1,6})"
    fibre: Pattern = r".*;port=(?P<port>\d{1,6})"
    in_service: Pattern = r"in-service"
    passing: Pattern = r"false"


LUMENTUM = LumentumDialect()


@dataclass(
    frozen=True,
    slots=True,
)
class ConnectionRow(Row):
    """The connection on the device, and its channel's power at input and output."""

    module: int = 0
    number: int = 0
    entering: str = ""
    leaving: str = ""


class LumentumRoadm(WavelengthSessionDriver[ConnectionRow]):
    """A ROADM, or one of its two switches. See ``WavelengthDriver`` for the methods."""

    built_in = LUMENTUM
    client_class = NetconfClient
    client: NetconfClient
    _dialect: LumentumDialect
    capabilities = contract.Capabilities(
        power_in=True,
        power_out=True,
    )
    # A connection is listed immediately; the device does not report when it is up.
    _looks_at_once = False

    async def identify(self) -> contract.Identity:
        """From ``system-state`` and the list of chassis."""
        system = await self.client.get(self._dialect.identity)
        chassis = await self.client.get(self._dialect.chassis)
        model, software = (
            _text(system, f".//{{*}}{leaf}")
            for leaf in ("machine", "os-version")
        )
        serial = _text(chassis, ".//{*}serial-no")
        return contract.Identity(
            self._dialect.vendor,
            model or "ROADM",
            serial,
            software,
        )

    async def port_states(self) -> contract.PortStates:
        """Out of service means locked; unlisted ports are absent."""
        listed = await self._ports()
        states = {}
        for port in self._all_ports():
            entry = listed.get(self._fibre(port))
            if entry is None:
                states[port] = contract.PortState("absent", "not listed")
                continue
            words = _text(entry, "{*}config/{*}maintenance-state")
            ready = re.fullmatch(self._dialect.in_service, words)
            states[port] = contract.PortState(
                "ready" if ready else "locked", words
            )
        return states

    async def power(
        self, ports: Iterable[contract.DirectedPort]
    ) -> contract.Powers:
        """Total power at each port."""
        requested = self._checked_ports(ports)
        powers = {}
        listed = await self._ports() if requested else {}
        for port in requested:
            entry = listed.get(self._fibre(port))
            text = (
                ""
                if entry is None
                else _text(entry, f"{{*}}state/{{*}}{port.side}put-power")
            )
            if text:
                powers[port] = power_dbm(text, self._dialect.dark_dbm)
        return powers

    async def channel_powers(
        self, ports: Iterable[contract.DirectedPort]
    ) -> Mapping[contract.DirectedPort, Mapping[Channel, float | None]]:
        """The power of each connection's channel at input and output."""
        powers: dict[contract.DirectedPort, dict[Channel, float | None]]
        powers = {port: {} for port in self._checked_ports(ports)}
        for way, row in (await self._table()).items() if powers else ():
            for port, text in zip(
                _ends(way), (row.entering, row.leaving), strict=True
            ):
                if port in powers:
                    powers[port][way.channel] = power_dbm(
                        text, self._dialect.dark_dbm
                    )
        return powers

    async def _table(self) -> Mapping[ChannelConnect, ConnectionRow]:
        return {
            way: row
            for way, row in await self._connections()
            if way is not None
        }

    async def _make(self, pairs: Sequence[ChannelConnect]) -> None:
        dialect = self._dialect
        taken = {
            (row.module, row.number) for _, row in await self._connections()
        }
        listed = []
        for way in pairs:
            inp, out = (self._fibre(port) for port in _ends(way))
            module = dialect.mux if out == dialect.line_out else dialect.demux
            if (inp == dialect.line_in) == (module == dialect.mux):
                raise self._will_not(NO_LINE)
            numbers = range(1, dialect.most_connections + 1)
            number = next(
                (n for n in numbers if (module, n) not in taken), None
            )
            if number is None:
                words = f"all {dialect.most_connections} connections of module {module} are in use"
                raise self._will_not(words)
            taken.add((module, number))
            first, last = (
                _ANCHOR_GHZ + edge * _STEP_GHZ for edge in way.channel.edges
            )
            listed.append(
                filled(
                    dialect.connection,
                    escape,
                    module=module,
                    conn=number,
                    first=str(first),
                    last=str(last),
                    attenuation=str(float(way.attenuation_db)),
                    inp=inp,
                    out=out,
                )
            )
        connections = Bare("".join(listed))
        await self.client.edit(
            filled(dialect.connect, escape, connections=connections)
        )

    async def _break(
        self,
        pairs: Sequence[ChannelConnect],
        table: Mapping[ChannelConnect, ConnectionRow],
    ) -> None:
        # Numbers may have changed since the table was read.
        now = await self._table()
        refused = list[str]()
        for way in pairs:
            if (row := now.get(way)) is None:
                continue
            template = self._dialect.disconnect
            request = filled(
                template,
                escape,
                module=row.module,
                conn=row.number,
            )
            with self._noting(refused), self._telling():
                await self.client.tell(request)
        self._raise_if(refused)

    async def _activate(
        self,
        pairs: Sequence[ChannelConnect],
        table: Mapping[ChannelConnect, ConnectionRow],
    ) -> None:
        # A blocked or disabled one is made again.
        await self._break(pairs, table)
        await self._make(pairs)

    async def _connections(
        self,
    ) -> list[tuple[ChannelConnect | None, ConnectionRow]]:
        """All of the device's; without those of fibres outside the lab's switch."""
        data = await self.client.get(self._dialect.connections)
        return [
            self._read(entry) for entry in data.iterfind(".//{*}connection")
        ]

    def _read(
        self, entry: ET.Element
    ) -> tuple[ChannelConnect | None, ConnectionRow]:
        dialect = self._dialect
        config = "{*}config/{*}"
        try:
            dn = _match(dialect.dn, _text(entry, "{*}dn"))
            fibres = [
                int(
                    _match(dialect.fibre, _text(entry, f"{config}{leaf}"))[
                        "port"
                    ]
                )
                for leaf in ("input-port-reference", "output-port-reference")
            ]
            first, last = (
                float(_text(entry, f"{config}{e}-freq"))
                for e in ("start", "end")
            )
            channel = _channel(first, last)
            less_db = round(
                float(_text(entry, f"{config}attenuation") or "0"), 2
            )
        except (ValueError, OverflowError) as error:
            shown = " ".join(" ".join(entry.itertext()).split())[:200]
            raise self._nonsense(
                "the query for its connections", shown
            ) from error
        passing = re.fullmatch(
            dialect.passing, _text(entry, f"{config}blocked")
        )
        state = _text(entry, f"{config}maintenance-state")
        up = passing and re.fullmatch(dialect.in_service, state)
        row = ConnectionRow(
            "up" if up else "entered",
            ""
            if up
            else f"{state}, blocked: {_text(entry, f'{config}blocked')}",
            module=int(dn["module"]),
            number=int(dn["conn"]),
            entering=_text(
                entry, "{*}state/{*}input-channel-attributes/{*}power"
            ),
            leaving=_text(
                entry, "{*}state/{*}output-channel-attributes/{*}power"
            ),
        )
        inp = self._number("in", fibres[0])
        out = self._number("out", fibres[1])
        if inp is None or out is None:
            return None, row
        return ChannelConnect(
            inp,
            out,
            channel,
            less_db,
        ), row

    async def _ports(self) -> Mapping[int, ET.Element]:
        """The device's list of its fibres, by number."""
        data = await self.client.get(self._dialect.ports)
        listed = {}
        for entry in data.iterfind(".//{*}physical-port"):
            if match := re.fullmatch(
                self._dialect.fibre, _text(entry, "{*}dn")
            ):
                listed[int(match["port"])] = entry
        return listed

    @property
    def _beside_line(self) -> int:
        """How many of its ports are the line, on the side with add or drop ports."""
        return int(self.inputs > 1 and self.outputs > 1)

    def _fibre(self, port: contract.DirectedPort) -> int:
        """The device's number of a port of the lab."""
        dialect = self._dialect
        more = self._counts[port.side] > 1
        line = dialect.line_in if port.side == "in" else dialect.line_out
        base = dialect.add_base if port.side == "in" else dialect.drop_base
        above = port.number - self._beside_line
        return base + above if more and above else line

    def _number(self, side: contract.Side, fibre: int) -> int | None:
        """The inverse; ``None`` if the lab's switch has no such fibre."""
        dialect = self._dialect
        more = self._counts[side] > 1
        if fibre == (dialect.line_in if side == "in" else dialect.line_out):
            return 1 if self._beside_line or not more else None
        above = fibre - (
            dialect.add_base if side == "in" else dialect.drop_base
        )
        return above + self._beside_line if more and above > 0 else None


def _ends(
    way: ChannelConnect,
) -> tuple[contract.DirectedPort, contract.DirectedPort]:
    return contract.DirectedPort("in", way.inp), contract.DirectedPort(
        "out", way.out
    )


def _match(pattern: str, text: str) -> re.Match[str]:
    match = re.fullmatch(pattern, text)
    if match is None:
        raise ValueError(f"{text!r} is not like {pattern}")
    return match


def _channel(first_ghz: float, last_ghz: float) -> Channel:
    """The channel between these edges; ``ValueError`` if none has them."""
    low, high = (
        (ghz - _ANCHOR_GHZ) / _STEP_GHZ for ghz in (first_ghz, last_ghz)
    )
    steps = (low + high) / 2
    slots = (high - low) / 2
    if steps % 1 or slots % 1 or slots < 1:
        raise ValueError(f"no channel is {first_ghz:g} to {last_ghz:g} GHz")
    return Channel(int(steps), int(slots))


def _text(element: ET.Element, path: str) -> str:
    return (element.findtext(path) or "").strip()
