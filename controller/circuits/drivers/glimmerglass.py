"""The driver ``glimmerglass-tl1``: Glimmerglass switches over TL1 (TCP 10034).

Inputs are 10001…, outputs 20001…. Run against the emulated device only so far; the commands
are in ``tl1/dialects.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from patchlight.controller.circuits.contract import Capabilities, DirectedPort, Identity, PortState
from patchlight.controller.circuits.dialects import corrected
from patchlight.controller.circuits.drivers.one_step import Held, lit_dbm
from patchlight.controller.circuits.drivers.tl1_patching import ListingDriver, matching
from patchlight.controller.circuits.numbering import Numbering
from patchlight.controller.circuits.protocols.tl1.dialects import GLIMMERGLASS, GlimmerglassDialect
from patchlight.testbed.lab import CircuitSwitch

_CAPABILITIES = Capabilities(bulk=True, power_in=True, power_out=True)


class GlimmerglassTl1(ListingDriver[GlimmerglassDialect]):
    """A Glimmerglass OCS. See ``CircuitDriver`` for what the methods do."""

    def __init__(
        self, switch: CircuitSwitch, password: str, dialect: GlimmerglassDialect | None = None
    ) -> None:
        dialect = dialect or corrected(switch.driver, GLIMMERGLASS)
        super().__init__(switch, password, dialect, _CAPABILITIES)

    async def identify(self) -> Identity:
        """From ``rtrv-system-info``, which has a line for each item."""
        reply = await self._client.command(self._dialect.identity, paged=True)
        said = {"model": "", "serial": "", "software": ""}
        for line in matching(self._dialect.identity_item, reply):
            said.update((item, value) for item, value in line.groupdict().items() if value)
        return Identity(self._dialect.vendor, **said)

    async def port_states(self) -> Mapping[DirectedPort, PortState]:
        """From ``rtrv-cfg-fiber``: the port's health."""
        numbering = await self._known()
        reply = await self._client.command(self._dialect.ports, paged=True)
        states: dict[DirectedPort, PortState] = {}
        for line in matching(self._dialect.port_line, reply):
            port = numbering.to_port(int(line["port"]))
            if port is not None and port.number <= self.ports:
                well = re.fullmatch(self._dialect.port_ready, line["state"])
                states[port] = PortState("ready" if well else "failed", line["state"])
        return states

    async def power(self, ports: Iterable[DirectedPort]) -> Mapping[DirectedPort, float | None]:
        """From ``rtrv-crs-fiber``, which tells the power at both ends of each circuit."""
        wanted = self._wanted_ports(ports)
        if not wanted:
            return {}
        numbering = await self._known()
        found: dict[DirectedPort, float | None] = {}
        for line in await self._circuit_lines():
            for number, power in ((line["in"], line["inpwr"]), (line["out"], line["outpwr"])):
                if port := numbering.to_port(int(number)):
                    found[port] = lit_dbm(power, self._dialect.dark_dbm)
        # An output that no line tells of is joined to nothing: no light leaves there.
        return {port: found.get(port) for port in wanted}

    # --- inside -----------------------------------------------------------------------------

    def _held(self, line: re.Match[str]) -> Held:
        state = f"{line['state']},{line['cause']}"
        words = f"CONNSTATE={line['state']},CONNCAUSE={line['cause']}"
        if re.fullmatch(self._dialect.up, state):
            return Held("up", words)
        return Held("failed" if re.fullmatch(self._dialect.failed, state) else "coming", words)

    async def _learn(self) -> Numbering:
        return Numbering(*await self._size(), self._dialect.in_base, self._dialect.out_base)
