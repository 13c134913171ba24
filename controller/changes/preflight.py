"""What speaks against a change, asked before anything is written."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from patchlight.controller.changes.locks import Locks, StopButton
from patchlight.controller.changes.planning import Plan
from patchlight.controller.changes.power import POWER_CEILING_DBM
from patchlight.controller.changes.record import ChangeOptions
from patchlight.controller.circuits.contract import CircuitDriver, DirectedPort, PortState
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab import Endpoint

# Port states are a whole table to read. A port that fails within this time shows itself when
# its circuit is made, and the change rolls back.
_STATES_KEPT_S = 60.0


class PortStates:
    """The states of the ports of each OCS, read again when they are old."""

    def __init__(self, drivers: Mapping[str, CircuitDriver]) -> None:
        self._drivers = drivers
        self._states: dict[str, tuple[float, Mapping[DirectedPort, PortState]]] = {}

    async def of(self, ocs: str) -> Mapping[DirectedPort, PortState]:
        """The states as read not long ago; empty where the device does not tell them."""
        now = asyncio.get_running_loop().time()
        read_at, states = self._states.get(ocs, (0.0, {}))
        if ocs not in self._states or now - read_at > _STATES_KEPT_S:
            states = await self.read(ocs)
        return states

    async def read(self, ocs: str) -> Mapping[DirectedPort, PortState]:
        """The states as they are now."""
        try:
            states = await self._drivers[ocs].port_states()
        except PatchlightError:
            # Some devices do not tell. The change itself will show what they can do.
            states = {}
        self._states[ocs] = (asyncio.get_running_loop().time(), states)
        return states

    def forget(self, ocs: str) -> None:
        """Read them anew next time: something happened to this device."""
        self._states.pop(ocs, None)


@dataclass
class PreflightResult:
    """``objections``: why the change may not be made, in words. ``arriving_dbm``: the power
    at the inputs of the circuits to make, by OCS, as far as the devices can measure it."""

    objections: list[str] = field(default_factory=list)
    arriving_dbm: dict[str, Mapping[DirectedPort, float | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class PreflightChecks:
    """All that is asked of a plan; ``jobs_using`` gives the jobs whose traffic uses these ports.

    ``unfinished`` says of a circuit switch, by name, why it takes no change: what an earlier
    one came to is not known.
    """

    drivers: Mapping[str, CircuitDriver]
    locks: Locks
    stop: StopButton
    port_states: PortStates
    jobs_using: Callable[[frozenset[Endpoint]], list[str]]
    power_ceiling_dbm: float = POWER_CEILING_DBM
    unfinished: dict[str, str] = field(default_factory=dict)

    def halts(self, plan: Plan) -> list[str]:
        """What keeps any change of these switches from beginning, whatever it is."""
        reasons = [self.unfinished[name] for name in plan.changes if name in self.unfinished]
        stopped = self.stop.message
        return list(dict.fromkeys([stopped, *reasons] if stopped else reasons))

    async def check(self, plan: Plan, options: ChangeOptions) -> PreflightResult:
        """Check a plan made with these options. Asks the devices; writes nothing."""
        result = PreflightResult(self.locks.objections(plan.changes, options.by))
        objections = result.objections
        if options.spare_jobs and (jobs := self.jobs_using(plan.moved)):
            objections.append(f"the traffic of {', '.join(jobs)} rides on what would change")
        for name, change in plan.changes.items():
            if not change.makes:
                continue
            states = await self.port_states.of(name)
            for c in change.makes:
                for port in (DirectedPort("in", c.inp), DirectedPort("out", c.out)):
                    state = states.get(port)
                    if state is not None and state.condition != "ready":
                        reason = f" ({state.words})" if state.words else ""
                        objections.append(f"{name} says {port} is {state.condition}{reason}")
            if self.drivers[name].capabilities.power_in:
                inputs = [DirectedPort("in", c.inp) for c in change.makes]
                arriving = await self.drivers[name].power(inputs)
                result.arriving_dbm[name] = arriving
                objections += [
                    f"{dbm:.1f} dBm arrive at {name} {port}, more than the ceiling of "
                    f"{self.power_ceiling_dbm:g} dBm"
                    for port, dbm in arriving.items()
                    if dbm is not None and dbm > self.power_ceiling_dbm
                ]
        return result
