"""The drivers of optical switches that come with Patchlight: one row each, and no more.

A row is all there is to registering a driver. The registry of drivers and that of emulated
devices, the lab file's schema and checks, the conformance tests and the table of drivers in the
documentation (``python -m patchlight.testbed.ocs_drivers`` prints it) are made from these rows.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OcsDriver:
    """A driver, and the emulated device that it is tested against.

    ``driver`` and ``device`` are ``module:Class``, the one below
    ``patchlight.controller.circuits.drivers``, the other below
    ``patchlight.emulation.optical.vendors`` (empty: it drives no device at all). They are
    imported when first used, so that a driver's libraries need not be there for the others.

    ``has_users``: its protocol has logins. ``makes_room``: its devices may take busy ports from
    their circuits. ``dials_in``: the device connects to Patchlight, and says a datapath id.
    """

    name: str
    transport: str
    driver: str
    device: str = ""
    has_users: bool = True
    makes_room: bool = False
    dials_in: bool = False
    tested_with: str = "conformance suite"
    hardware: str = "not yet"


_ROWS = (
    OcsDriver(
        "calient-tl1",
        "TL1 over TCP (3082, telnet 3083)",
        driver="calient.tl1:CalientTl1",
        device="calient:CalientTl1Server",
        makes_room=True,
    ),
    OcsDriver(
        "calient-rest",
        "REST over HTTPS",
        driver="calient.rest:CalientRest",
        device="calient_rest:CalientRestServer",
        makes_room=True,
    ),
    OcsDriver(
        "polatis-scpi",
        "SCPI over TCP (5025)",
        driver="polatis.scpi:PolatisScpi",
        device="polatis_scpi:PolatisScpiServer",
        has_users=False,
    ),
    OcsDriver(
        "polatis-tl1",
        "TL1 over TCP (3082)",
        driver="polatis.tl1:PolatisTl1",
        device="polatis_tl1:PolatisTl1Server",
    ),
    OcsDriver(
        "polatis-netconf",
        "NETCONF over SSH (830; extra `netconf`)",
        driver="polatis.netconf:PolatisNetconf",
        device="polatis_netconf:PolatisNetconfServer",
    ),
    OcsDriver(
        "polatis-restconf",
        "RESTCONF over HTTPS",
        driver="polatis.restconf:PolatisRestconf",
        device="polatis_restconf:PolatisRestconfServer",
    ),
    OcsDriver(
        "glimmerglass-tl1",
        "TL1 over TCP (10034)",
        driver="glimmerglass:GlimmerglassTl1",
        device="glimmerglass:GlimmerglassTl1Server",
    ),
    OcsDriver(
        "telescent-ssh",
        "command line over SSH (9861)",
        driver="telescent:TelescentSsh",
        device="telescent:TelescentSshServer",
    ),
    OcsDriver(
        "sonic-ocs",
        "RESTCONF over HTTPS, SONiC's OCS model",
        driver="sonic:SonicOcs",
        device="sonic:SonicOcsServer",
    ),
    OcsDriver(
        "openflow",
        "OpenFlow 1.3: the switch connects to Patchlight",
        driver="openflow:OpenFlowSwitch",
        device="openflow:OpenFlowServer",
        has_users=False,
        dials_in=True,
        tested_with="conformance suite; Open vSwitch with packets",
    ),
    OcsDriver(
        "dry-run",
        "none: remembers, for rehearsals",
        driver="dry_run:DryRun",
        has_users=False,
        tested_with="itself",
        hardware="–",
    ),
)
OCS_DRIVERS = {row.name: row for row in _ROWS}
"""Those of circuit switches."""

_WSS_ROWS = (
    OcsDriver(
        "dry-run",
        "none: remembers, for rehearsals",
        driver="dry_run:DryRunWavelengths",
        has_users=False,
        tested_with="itself",
        hardware="–",
    ),
)
WSS_DRIVERS = {row.name: row for row in _WSS_ROWS}
"""Those of wavelength switches."""

DRIVER_GROUP = "patchlight.ocs_drivers"
"""The group of entry points with which other packages add drivers of circuit switches."""
WSS_DRIVER_GROUP = "patchlight.wss_drivers"
"""The same of wavelength switches."""


def drivers_table(drivers: Iterable[OcsDriver] = _ROWS) -> str:
    """The Markdown table of the drivers: transport, what each was tested with, on what hardware."""
    head = ("driver", "transport", "emulated device", "hardware")
    rows = [(f"`{d.name}`", d.transport, d.tested_with, d.hardware) for d in drivers]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, *rows)).replace(
        "\n", "\n|---|---|---|---|\n", 1
    )


if __name__ == "__main__":
    print(drivers_table())
