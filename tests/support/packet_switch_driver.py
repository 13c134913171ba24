"""A driver of packet switches in memory: what a package needs to drive a kind of its own.

Its package names it in ``setup.cfg``, and a lab file writes ``driver: example``::

    [options.entry_points]
    patchlight.packet_switch_drivers =
        example = my_package:Example

It passes the conformance suite::

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_conformance(check):
        asyncio.run(run_check(check, lambda: Example(switch, ""), ports=(1, 2, 3)))
"""

from patchlight.controller.packet_switches.contract import (
    Applied,
    Lack,
    PortState,
    Station,
    SwitchState,
    Wish,
)
from patchlight.testbed.lab.model import PacketSwitch

# The switches of the machine that this stands for, by address: they outlive each driver.
TABLES: dict[str, dict[Station, int]] = {}


class Example:
    """A switch whose table is a dictionary."""

    def __init__(self, switch: PacketSwitch, password: str) -> None:
        self._switch = switch
        self._password = password
        self._wish = Wish()

    @property
    def name(self) -> str:
        """The switch's name in the lab."""
        return self._switch.name

    async def open(self) -> None:
        """Here a driver connects and logs in."""
        TABLES.setdefault(self._switch.address, {})

    async def close(self) -> None:
        """Here it disconnects; the switch goes on forwarding."""

    async def set_forwarding(self, wish: Wish) -> Applied:
        """Change what differs, and say what is missing."""
        self._wish = wish
        table = TABLES[self._switch.address]
        wanted = {
            s: port
            for s, port in wish.places.items()
            if port <= self._switch.ports
        }
        lacks = [
            Lack(s, f"it has no port {p}")
            for s, p in wish.places.items()
            if s not in wanted
        ]
        changed = sum(
            wanted.get(s) != table.get(s) for s in wanted.keys() | table.keys()
        )
        table.clear()
        table.update(wanted)
        return Applied(changed, tuple(lacks))

    async def read(self) -> SwitchState:
        """The stations of the last wish as the switch has them, and its counters."""
        table = TABLES[self._switch.address]
        places = {s: table[s] for s in self._wish.places if s in table}
        ports = [
            port for port in self._wish.ports if port <= self._switch.ports
        ]
        return SwitchState(
            places, dict.fromkeys(ports, PortState(0, 0, up=True))
        )

    async def release(self) -> None:
        """Remove what was set."""
        self._wish = Wish()
        TABLES[self._switch.address].clear()
