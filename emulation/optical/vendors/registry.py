"""Which vendor's protocol an emulated OCS speaks, by the name of the driver that drives it."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from typing import Protocol

from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.protocols.http_server import HttpFront
from patchlight.emulation.optical.vendors.calient import CalientFront
from patchlight.emulation.optical.vendors.calient_rest import CalientRestFront
from patchlight.emulation.optical.vendors.glimmerglass import GlimmerglassFront
from patchlight.emulation.optical.vendors.openflow import OpenFlowFront
from patchlight.emulation.optical.vendors.polatis_netconf import PolatisNetconfFront
from patchlight.emulation.optical.vendors.polatis_restconf import PolatisRestconfFront
from patchlight.emulation.optical.vendors.polatis_scpi import PolatisScpiFront
from patchlight.emulation.optical.vendors.polatis_tl1 import PolatisTl1Front
from patchlight.emulation.optical.vendors.telescent import TelescentFront
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab import CircuitSwitch

Users = dict[str, str | None]


class ProtocolServer(Protocol):
    """A vendor's protocol in front of a device."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, until it goes."""

    def report(self, text: str) -> None:
        """Say something unasked to every client, as far as the protocol can."""


PROTOCOL_SERVERS: dict[str, Callable[[EmulatedOcs, Users], ProtocolServer]] = {
    "calient-tl1": CalientFront,
    "calient-rest": CalientRestFront,
    "polatis-scpi": PolatisScpiFront,
    "polatis-tl1": PolatisTl1Front,
    "polatis-restconf": PolatisRestconfFront,
    "glimmerglass-tl1": GlimmerglassFront,
    "polatis-netconf": PolatisNetconfFront,
    "telescent-ssh": TelescentFront,
    "openflow": OpenFlowFront,
}


def server_of(device: EmulatedOcs) -> ProtocolServer:
    """The front of the device's driver; ``BadInput`` if no emulation speaks that protocol."""
    make = PROTOCOL_SERVERS.get(device.switch.driver)
    if make is None:
        raise BadInput(
            f"{device.switch.name}: no emulated device speaks {device.switch.driver!r}: "
            f"there are {', '.join(PROTOCOL_SERVERS)}"
        )
    return make(device, users_of(device.switch))


def tls_of(front: ProtocolServer) -> ssl.SSLContext | None:
    """What its clients connect with; ``None`` for plain TCP."""
    return front.tls if isinstance(front, HttpFront) else None


def dials(front: ProtocolServer) -> bool:
    """Whether it connects to its client, rather than wait for it."""
    return isinstance(front, OpenFlowFront)


def users_of(switch: CircuitSwitch) -> Users:
    """The lab file's users, with the passwords of their environment variables, else any."""
    named = {user.name: user.password_env for user in switch.emulated.users}
    variables = {switch.user: switch.password_env, **named}
    return {
        name: os.environ.get(variable) if variable else None for name, variable in variables.items()
    }
