"""The driver ``learning``: switches that learn and forward by themselves get nothing."""

from patchlight.controller.packet_switches.contract import (
    Applied,
    SwitchState,
    Wish,
)
from patchlight.testbed.lab.model import PacketSwitch


class Learning:
    """A switch that is not driven. See ``PacketSwitchDriver`` for the methods."""

    learns = True

    def __init__(self, switch: PacketSwitch, _password: str) -> None:
        self._name = switch.name
        self._wish = Wish()

    @property
    def name(self) -> str:
        """The switch's name in the lab."""
        return self._name

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to disconnect from."""

    async def set_forwarding(self, wish: Wish) -> Applied:
        """It learns where stations are, and lacks nothing that Patchlight could know of."""
        self._wish = wish
        return Applied()

    async def read(self) -> SwitchState:
        """What it was wished: its own table is unknown."""
        return SwitchState(self._wish.places, {})

    async def release(self) -> None:
        """Nothing was set."""
        self._wish = Wish()
