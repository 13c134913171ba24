"""Registers the built-in drivers of packet switches, one row each."""

from dataclasses import dataclass

DEFAULT_DRIVER = "openflow"
PACKET_DRIVER_GROUP = "patchlight.packet_switch_drivers"
"""Entry point group for external drivers of packet switches."""


@dataclass(
    frozen=True,
    slots=True,
)
class PacketDriver:
    """A driver: ``driver`` is ``module:Class`` below ``patchlight.controller.packet_switches``.

    ``learns``: its switches learn MACs themselves and flood. ``floods``: they flood at least
    broadcasts, so without a spanning tree a loop of them is a storm. ``needs``: its keys in the
    lab file, beyond those of every switch; ``takes``: further ones that others lack.
    ``port_names``: the usual interface of port ``{n}`` of an emulated one, which is a machine
    with an sshd.
    """

    name: str
    driver: str = ""
    learns: bool = False
    floods: bool = False
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    port_names: str = ""


PACKET_DRIVERS = {
    row.name: row
    for row in (
        PacketDriver("openflow", needs=("datapath_id",)),
        PacketDriver(
            "linux-bridge",
            "linux_bridge:LinuxBridge",
            needs=("address",),
            takes=("vlan",),
            port_names="swp{n}",
        ),
        PacketDriver(
            "sonic",
            "sonic:Sonic",
            floods=True,
            needs=("address", "vlan"),
            port_names="Ethernet{n}",
        ),
        PacketDriver(
            "learning",
            "learning:Learning",
            learns=True,
            floods=True,
            takes=("address", "vlan"),
        ),
    )
}
