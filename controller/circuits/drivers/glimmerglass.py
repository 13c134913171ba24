"""The driver ``glimmerglass-tl1``: Glimmerglass switches over TL1 (TCP 10034).

Inputs are 10001…, outputs 20001…. Run against the emulated device only so far; the commands
are in ``tl1/dialects.py``.
"""

import re
from collections.abc import Iterable, Mapping

from patchlight.controller.circuits.contract import Capabilities, DirectedPort, Identity, PortState
from patchlight.controller.circuits.dialects import power_dbm
from patchlight.controller.circuits.drivers.numbered import Numbering
from patchlight.controller.circuits.drivers.table import Row
from patchlight.controller.circuits.drivers.tl1_lists import Tl1ListDriver, matching
from patchlight.controller.circuits.protocols.tl1.dialects import GLIMMERGLASS, GlimmerglassDialect


class GlimmerglassTl1(Tl1ListDriver[GlimmerglassDialect]):
    """A Glimmerglass OCS. See ``CircuitDriver`` for what the methods do."""

    built_in = GLIMMERGLASS
    _capabilities = Capabilities(power_in=True, power_out=True)

    async def identify(self) -> Identity:
        """From ``rtrv-system-info``, which has a line for each item."""
        reply = await self.client.command(self._dialect.identity, paged=True)
        items = {"model": "", "serial": "", "software": ""}
        for line in matching(self._dialect.identity_item, reply):
            items.update((item, value) for item, value in line.groupdict().items() if value)
        return Identity(self._dialect.vendor, **items)

    async def port_states(self) -> Mapping[DirectedPort, PortState]:
        """From ``rtrv-cfg-fiber``: the port's health."""
        numbering = await self._numbering()
        reply = await self.client.command(self._dialect.ports, paged=True)
        states: dict[DirectedPort, PortState] = {}
        for line in matching(self._dialect.port_line, reply):
            port = numbering.to_port(int(line["port"]))
            if port is not None and port.number <= self.ports:
                well = re.fullmatch(self._dialect.port_ready, line["state"])
                states[port] = PortState("ready" if well else "failed", line["state"])
        return states

    async def power(self, ports: Iterable[DirectedPort]) -> Mapping[DirectedPort, float | None]:
        """From ``rtrv-crs-fiber``, which tells the power at both ends of each circuit."""
        asked = self._checked_ports(ports)
        if not asked:
            return {}
        numbering = await self._numbering()
        powers: dict[DirectedPort, float | None] = {}
        for line in await self._circuit_lines():
            for number, power in ((line["in"], line["inpwr"]), (line["out"], line["outpwr"])):
                if port := numbering.to_port(int(number)):
                    powers[port] = power_dbm(power, self._dialect.dark_dbm)
        # An output that no line tells of is joined to nothing: no light leaves there.
        return {port: powers.get(port) for port in asked}

    def _row(self, line: re.Match[str]) -> Row:
        state = f"{line['state']},{line['cause']}"
        words = f"CONNSTATE={line['state']},CONNCAUSE={line['cause']}"
        if re.fullmatch(self._dialect.up, state):
            return Row("up", words)
        return Row("failed" if re.fullmatch(self._dialect.failed, state) else "coming", words)

    async def _learn(self) -> Numbering:
        return Numbering(*await self._size(), self._dialect.in_base, self._dialect.out_base)
