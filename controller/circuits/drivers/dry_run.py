"""The driver ``dry-run``: talks to nothing and remembers, for rehearsals."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from patchlight.controller.circuits.contract import (
    Alarm,
    Capabilities,
    DirectedPort,
    Identity,
    Outcome,
    PortState,
    Refusal,
    checked,
)
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.portmap import CrossConnect, PortMap, PortMapChange


class DryRun:
    """An OCS that exists only in memory; begins with the lab file's cross-connects."""

    capabilities = Capabilities()

    def __init__(self, switch: CircuitSwitch, password: str = "") -> None:
        self._switch = switch
        self._map = switch.initial

    @property
    def name(self) -> str:
        """The OCS's name in the lab."""
        return self._switch.name

    @property
    def ports(self) -> int:
        """How many ports it has on each side."""
        return self._switch.ports

    async def open(self) -> None:
        """Nothing to reach."""

    async def close(self) -> None:
        """Nothing to let go; the map stays in memory."""

    async def identify(self) -> Identity:
        """It says that it is a rehearsal."""
        return Identity("Patchlight", "dry-run", "", "", self.name)

    async def read_map(self) -> PortMap:
        """The remembered map."""
        return self._map

    async def connect(self, pairs: Iterable[CrossConnect]) -> Outcome:
        """Remember these; a port in use refuses."""
        began = asyncio.get_running_loop().time()
        done, refused = [], []
        out_of, in_of = dict(self._map.out_of), dict(self._map.in_of)
        for c in checked(pairs, self.ports):
            if out_of.get(c.inp, c.out) != c.out:
                refused.append(Refusal(c, f"in:{c.inp} is in use: {c.inp}>{out_of[c.inp]}"))
            elif in_of.get(c.out, c.inp) != c.inp:
                refused.append(Refusal(c, f"out:{c.out} is in use: {in_of[c.out]}>{c.out}"))
            else:
                out_of[c.inp], in_of[c.out] = c.out, c.inp
                done.append(c)
        self._map = PortMap.of(out_of.items())
        elapsed_s = asyncio.get_running_loop().time() - began
        return Outcome(tuple(done), tuple(refused), elapsed_s)

    async def disconnect(self, pairs: Iterable[CrossConnect]) -> Outcome:
        """Forget these."""
        began = asyncio.get_running_loop().time()
        wanted = checked(pairs, self.ports)
        held = set(self._map)
        self._map = self._map.apply(PortMapChange(breaks=tuple(c for c in wanted if c in held)))
        return Outcome(wanted, (), asyncio.get_running_loop().time() - began)

    async def port_states(self) -> Mapping[DirectedPort, PortState]:
        """Every port is ready."""
        ready = PortState("ready", "dry run")
        numbers = range(1, self.ports + 1)
        inputs = {DirectedPort("in", n): ready for n in numbers}
        return inputs | {DirectedPort("out", n): ready for n in numbers}

    async def power(self, ports: Iterable[DirectedPort]) -> Mapping[DirectedPort, float | None]:
        """Nothing: there is no power monitor."""
        return {}

    async def alarms(self) -> tuple[Alarm, ...]:
        """There are none."""
        return ()
