"""An emulated OCS behind its vendor's protocol: switch matrix, optical power, memory.

A protocol server calls what changes it (plain methods), then awaits ``settle`` before it answers:
then the crossbar has done what the answer says. It awaits ``settle`` before reading, too.
"""

import asyncio
import contextlib
import functools
import json
import logging
import os
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from patchlight.emulation.optical.crossbar import Crossbar
from patchlight.emulation.optical.faults import Faults
from patchlight.emulation.optical.switch_matrix import (
    Circuit,
    LightChange,
    Phase,
    RequestRefused,
    SwitchMatrix,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.portmap import CrossConnect, PortMap

log = logging.getLogger("patchlight.optical")

_VARIATION_DB = 0.3


class Timer(Protocol):
    """Something due later that can be called off."""

    def cancel(self) -> None:
        """Call it off."""


class Clock(Protocol):
    """Seconds that only go forward, and calls at a time, as an event loop has them."""

    def time(self) -> float:
        """The time."""

    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer:
        """Call ``callback`` at ``when``."""


class EmulatedOcs:
    """One emulated device.

    ``arriving_dbm`` is the power at each plugged input while its transmitter is on (launch
    power less the fibre's loss). ``state_file`` keeps the circuits over a restart. ``users`` may
    log in, with these passwords or, where that is ``None``, with any: else the lab file's users,
    with the passwords in their environment variables. ``clock``: else the running event loop.
    """

    def __init__(
        self,
        switch: CircuitSwitch,
        arriving_dbm: Mapping[int, float],
        crossbar: Crossbar,
        *,
        users: Mapping[str, str | None] | None = None,
        state_file: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.switch = switch
        self.faults = Faults()
        self.faults.on_meddling = self._meddle
        self.matrix = SwitchMatrix(switch.ports, switch.switching_time_s)
        self.seed = switch.name
        self._users = _lab_users(switch) if users is None else users
        self._viewers = frozenset(u.name for u in switch.emulated.users if u.read_only)
        self._arriving_dbm = dict(arriving_dbm)
        self._crossbar = crossbar
        self._own_clock = clock
        self._state_file = state_file
        self._lock = asyncio.Lock()
        self._timer: Timer | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = False

    async def open(self) -> None:
        """Power on: the remembered circuits, else the lab file's, are lit at once."""
        await self._crossbar.open()
        if self._state_file is not None and self._state_file.exists():
            self._remember(self._state_file)
        else:
            for c in self.switch.initial:
                self.make((c,))
        self.apply_faults()
        async with self._lock:
            # The mirrors were where they are before we began to count time.
            await self._move(self.matrix.take(float("inf")))
            self._save()

    async def close(self) -> None:
        """Power off; what the crossbar carries it goes on carrying."""
        if self._timer is not None:
            self._timer.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._crossbar.close()

    @property
    def _clock(self) -> Clock:
        return self._own_clock or asyncio.get_running_loop()

    def lets_in(self, user: str, password: str) -> bool:
        """Whether there is such a user with that password."""
        return user in self._users and self._users[user] in (None, password)

    def may_change(self, user: str) -> bool:
        """Whether this user may do more than look."""
        return not self.faults.read_only and user not in self._viewers

    # --- changes: call, then await settle ---------------------------------------------------

    def enter(self, directions: Iterable[CrossConnect], name: str = "", group: str = "") -> Circuit:
        """Take the ports for a circuit; it stays dark. Raises ``RequestRefused``.

        A device that makes room takes busy ports from their circuits, and is slow then.
        """
        self._changed = True
        directions, conflict_s = tuple(directions), self.switch.emulated.conflict_time_s
        if conflict_s is None:
            return self.matrix.enter(directions, name, group)
        in_the_way = self.matrix.in_the_way(directions)
        self.remove_all(in_the_way)
        circuit = self.matrix.enter(directions, name, group)
        circuit.switching_time_s = conflict_s if in_the_way else None
        return circuit

    def activate(self, circuit: Circuit) -> None:
        """Turn the mirrors to it. Raises ``RequestRefused``."""
        self._changed = True
        self.matrix.activate(circuit, self._clock.time())

    def make(self, directions: Iterable[CrossConnect], name: str = "", group: str = "") -> Circuit:
        """Enter and activate a circuit; nothing of it is left if that is ``RequestRefused``."""
        circuit = self.enter(directions, name, group)
        try:
            self.activate(circuit)
        except RequestRefused:
            self.remove(circuit)
            raise
        return circuit

    def deactivate(self, circuit: Circuit) -> None:
        """Make it dark; the ports stay taken."""
        self._changed = True
        self.matrix.deactivate(circuit)

    def remove(self, circuit: Circuit) -> None:
        """Make it dark and free the ports."""
        self._changed = True
        self.matrix.remove(circuit)

    def remove_all(self, circuits: Iterable[Circuit | None]) -> None:
        """Remove each of these once; ``None`` is passed over."""
        for circuit in dict.fromkeys(circuits):
            if circuit is not None:
                self.remove(circuit)

    async def settle(self) -> None:
        """Let the crossbar catch up with the mirrors, and the file with the circuits."""
        async with self._lock:
            change = self.matrix.take(self._clock.time())
            if change:
                await self._move(change)
            if self._changed:
                self._changed = False
                self._save()
            if self._timer is not None:
                self._timer.cancel()
            due = self.matrix.next_due()
            self._timer = None if due is None else self._clock.call_at(due, self._on_due)

    async def light(self, pairs: Iterable[CrossConnect]) -> list[Circuit]:
        """Make these one-way circuits, all or none, and wait until their mirrors rest.

        Raises ``RequestRefused``. One whose mirrors fail is in the table all the same: look at the
        phases of the circuits returned.
        """
        made: list[Circuit] = []
        try:
            for c in pairs:
                made.append(self.make((c,)))
        except RequestRefused:
            self.remove_all(made)
            raise
        await self.come_to_rest()
        return made

    async def come_to_rest(self) -> None:
        """Wait until no mirror turns any more."""
        while True:
            await self.settle()
            due = self.matrix.next_due()
            if due is None:
                return
            await asyncio.sleep(max(due - self._clock.time(), 0.0))

    async def lose(self, cross_connect: CrossConnect) -> None:
        """Let a cross-connect be gone without a word, with its whole circuit if it has one."""
        circuit = self.matrix.find(cross_connect)
        if circuit is not None:
            self.remove(circuit)
            await self.settle()

    async def _meddle(self, cross_connects: PortMap) -> None:
        """Another client breaks these circuits, and makes those that are not there."""
        for c in cross_connects:
            circuit = self.matrix.find(c)
            if circuit is not None:
                self.remove(circuit)
                continue
            # Where a port is in use the other client is refused, too.
            with contextlib.suppress(RequestRefused):
                self.make((c,))
        await self.settle()

    async def reboot(self, *, keep_map: bool) -> None:
        """Power off and on: everything dark, then what was active turns anew, or nothing."""
        for circuit in tuple(self.matrix):
            active = circuit.phase is not Phase.PARKED
            self.deactivate(circuit)
            if not keep_map:
                self.remove(circuit)
            elif active:
                # A port locked meanwhile leaves its circuit entered and dark.
                with contextlib.suppress(RequestRefused):
                    self.activate(circuit)
        await self.settle()

    async def faults_changed(self) -> None:
        """Take over what ``faults`` says of ports."""
        self.apply_faults()
        await self.settle()

    def apply_faults(self) -> None:
        """The same at once; what it is for the light follows with ``settle``."""
        self.matrix.locked = set(self.faults.refuse_ports)
        self.matrix.failed = set(self.faults.fail_ports)

    # --- readings: await settle, then call --------------------------------------------------

    @property
    def map(self) -> PortMap:
        """The cross-connects that are lit now."""
        outputs = range(1, self.switch.ports + 1)
        lit = ((self.matrix.lights(out), out) for out in outputs)
        return PortMap.of((inp, out) for inp, out in lit if inp is not None)

    def name_of(self, circuit: Circuit, otherwise: str) -> str:
        """What the circuit is called; ``otherwise`` where nobody gave it a name."""
        return self.faults.names or circuit.name or otherwise

    def loss_db(self, cross_connect: CrossConnect) -> float:
        """The insertion loss of one path: nearly the device's, a little off for each pair."""
        own = _own_loss_db(f"{self.seed}/{cross_connect}")
        return max(self.switch.insertion_loss_db + own, 0.0)

    async def power(self, ports: Iterable[int]) -> dict[int, tuple[float | None, float | None]]:
        """Power in dBm at ``in:n`` and ``out:n`` of these ports, ``None`` where it is dark."""
        ports = tuple(ports)
        sources = {out: self.matrix.lights(out) for out in ports}
        inputs = {*ports, *(inp for inp in sources.values() if inp is not None)}
        on = await self._crossbar.receiving(inputs)
        arriving = {inp: self._arriving_dbm.get(inp) if inp in on else None for inp in inputs}
        readings = {}
        for port in ports:
            inp = sources[port]
            dbm = None if inp is None else arriving[inp]
            if inp is not None and dbm is not None:
                dbm -= self.loss_db(CrossConnect(inp, port))
                dbm -= self.faults.drift_db.get(str(port), 0.0)
            readings[port] = (arriving[port], dbm)
        return readings

    async def _move(self, change: LightChange) -> None:
        try:
            await self._crossbar.change(change)
        except PatchlightError as error:
            log.error("%s: %s", self.switch.name, error)
            for c in change.light:
                self.matrix.fail(c)

    def _on_due(self) -> None:
        task = asyncio.get_running_loop().create_task(self.settle())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _save(self) -> None:
        if self._state_file is None:
            return
        circuits = [
            {
                "directions": [[c.inp, c.out] for c in circuit.directions],
                "name": circuit.name,
                "group": circuit.group,
                "active": circuit.phase is not Phase.PARKED,
            }
            for circuit in self.matrix
        ]
        beside = self._state_file.with_name(self._state_file.name + ".new")
        beside.write_text(json.dumps({"version": 1, "circuits": circuits}))
        os.replace(beside, self._state_file)

    def _remember(self, path: Path) -> None:
        try:
            circuits: list[dict[str, Any]] = json.loads(path.read_text())["circuits"]
            for kept in circuits:
                directions = [CrossConnect(inp, out) for inp, out in kept["directions"]]
                circuit = self.enter(directions, kept["name"], kept["group"])
                if kept["active"]:
                    self.activate(circuit)
        except (OSError, ValueError, KeyError, TypeError, RequestRefused) as error:
            raise PatchlightError(
                f"{self.switch.name}: reading its circuits from {path}: {error}",
                hint="delete the file to begin with the lab file's cross-connects",
            ) from error


def _lab_users(switch: CircuitSwitch) -> dict[str, str | None]:
    variables = {switch.user: switch.password_env}
    variables |= {user.name: user.password_env for user in switch.emulated.users}
    return {name: os.environ.get(var) if var else None for name, var in variables.items()}


@functools.lru_cache(maxsize=1 << 17)
def _own_loss_db(path: str) -> float:
    return random.Random(path).uniform(-_VARIATION_DB, _VARIATION_DB)
