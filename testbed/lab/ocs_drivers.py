"""Registers the built-in drivers of optical switches, one row each.

``python -m patchlight.testbed.lab.ocs_drivers`` prints them as the table in the documentation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab, OpticalSwitch
from patchlight.testbed.lab.wavelengths import WavelengthSwitch


@dataclass(
    frozen=True,
    slots=True,
)
class OcsDriver:
    """A driver, and the emulated device that tests it.

    ``driver`` and ``device`` are ``module:Class``, below ``patchlight.controller.circuits.drivers``
    (with packages: below ``patchlight.controller``) and ``patchlight.emulation.optical.vendors``
    (empty: it drives no device). They are imported when first used, so each driver's libraries are
    optional.

    ``shape``: its wavelength switches: any N×M; ``one-sided``, 1×N or N×1, with a grid; ``roadm``,
    one-sided or with a line at port 1. ``port``: where its devices listen by default, or where
    Patchlight listens for them. ``has_users``: its protocol has logins. ``makes_room``: its devices
    may disconnect busy ports. ``dials_in``: the device connects to Patchlight and reports a
    datapath id. ``one_by_one``: its devices make one entry after the other.
    """

    name: str
    transport: str
    driver: str
    device: str = ""
    port: int = 3082
    shape: Literal["any", "one-sided", "roadm"] = "any"
    has_users: bool = True
    makes_room: bool = False
    dials_in: bool = False
    one_by_one: bool = False
    tested_with: str = "conformance suite"
    hardware: str = "not yet"

    @property
    def place(self) -> str:
        """Where its class is, as ``module:Class``."""
        room = "" if "." in self.driver else "circuits.drivers."
        return f"patchlight.controller.{room}{self.driver}"


_ROWS = (
    OcsDriver(
        "calient-tl1", "TL1 over TCP (3082, telnet 3083)", "calient_tl1:CalientTl1",
        "calient:CalientTl1Server", makes_room=True,
    ),
    OcsDriver(
        "calient-rest", "REST over HTTPS", "calient_rest:CalientRest",
        "calient:CalientRestServer", 443, makes_room=True,
    ),
    OcsDriver(
        "polatis-scpi", "SCPI over TCP (5025)", "polatis:PolatisScpi",
        "polatis:PolatisScpiServer", 5025, has_users=False,
    ),
    OcsDriver(
        "polatis-tl1", "TL1 over TCP (3082)", "tl1_lists:PolatisTl1",
        "tl1_lists:PolatisTl1Server",
    ),
    OcsDriver(
        "polatis-netconf", "NETCONF over SSH (830)",
        "polatis_netconf:PolatisNetconf", "netconf:PolatisNetconfServer", 830,
    ),
    OcsDriver(
        "polatis-restconf", "RESTCONF over HTTPS", "polatis_restconf:PolatisRestconf",
        "http:PolatisRestconfServer", 443,
    ),
    OcsDriver(
        "glimmerglass-tl1", "TL1 over TCP (10034)", "tl1_lists:GlimmerglassTl1",
        "tl1_lists:GlimmerglassTl1Server", 10034,
    ),
    OcsDriver(
        "telescent-ssh", "command line over SSH (9861)", "telescent:TelescentSsh",
        "telescent:TelescentSshServer", 9861, one_by_one=True,
    ),
    OcsDriver(
        "sonic-ocs", "RESTCONF over HTTPS, SONiC's OCS model", "sonic:SonicOcs",
        "http:SonicOcsServer", 443,
    ),
    OcsDriver(
        "sonic-ocs-ssh", "command line over SSH (22), SONiC's OCS commands",
        "sonic_ssh:SonicOcsSsh", "sonic_cli:SonicOcsCliServer", 22,
    ),
    OcsDriver(
        "ocp-gnmi", "gNMI over TLS, OCP's model (9339)", "ocp_gnmi:OcpGnmi",
        "gnmi:OcpGnmiServer", 9339, tested_with="conformance suite; pygnmi",
    ),
    OcsDriver(
        "openflow", "OpenFlow 1.3: the switch connects to Patchlight",
        "packet_switches.openflow.circuit_switch:OpenFlowSwitch", "openflow:OpenFlowServer", 6654,
        has_users=False, dials_in=True, tested_with="conformance suite; Open vSwitch with packets",
    ),
    OcsDriver(
        "dry-run", "none: keeps a map in memory, for rehearsals", "dry_run:DryRun",
        has_users=False, tested_with="itself", hardware="–",
    ),
)  # fmt: skip
OCS_DRIVERS = {row.name: row for row in _ROWS}
"""Drivers of circuit switches."""
KNOWN_DRIVERS = tuple(row.name for row in _ROWS if row.device)
"""Built-in drivers of devices, for editors; those of other packages are accepted as well."""

_WSS_ROWS = (
    OcsDriver(
        "waveshaper-http", "REST over HTTP, profiles of the whole band", "waveshaper:WaveShaper",
        "http:WaveShaperServer", 80, "one-sided", has_users=False,
    ),
    OcsDriver(
        "lumentum-netconf", "NETCONF over SSH (830)",
        "lumentum:LumentumRoadm", "netconf:LumentumServer", 830, "roadm",
    ),
    OcsDriver(
        "dry-run", "none: keeps a map in memory, for rehearsals", "dry_run:DryRunWavelengths",
        has_users=False, tested_with="itself", hardware="–",
    ),
)  # fmt: skip
WSS_DRIVERS = {row.name: row for row in _WSS_ROWS}
"""Drivers of wavelength switches."""


def makes_one_by_one(switch: OpticalSwitch) -> bool:
    """Whether a switch makes its entries one after the other, as robots do.

    Others, also those of external drivers, make all entries of a change at once.
    """
    row = OCS_DRIVERS.get(switch.driver)
    return row is not None and row.one_by_one


def outage_s(lab: Lab, makes: Mapping[str, int]) -> float:
    """How long a change keeps its circuits dark that makes so many entries at each switch.

    Switches work at the same time, and traffic waits for the last entry of the slowest.
    """
    found = 0.0
    for name, entries in makes.items():
        switch = lab.optical_switch(name)
        moves = entries if makes_one_by_one(switch) else min(entries, 1)
        found = max(found, moves * switch.switching_time_s)
    return found


def check_shape(switch: WavelengthSwitch) -> None:
    """``BadInput`` if no device of its driver has this form. External drivers may have any."""
    row = WSS_DRIVERS.get(switch.driver)
    if row is None or row.shape == "any":
        return
    one_sided = 1 in (switch.inputs, switch.outputs)
    if row.shape == "one-sided":
        if not one_sided:
            raise BadInput(
                f"a {row.name} has one common port, not {switch.inputs} inputs and "
                f"{switch.outputs} outputs: expected 'inputs: 1' or 'outputs: 1'"
            )
        if switch.grid.spacing_ghz is None:
            raise BadInput(
                f"a {row.name} has no flexible grid: expected a fixed one, like 'grid: 50GHz'"
            )
    elif not one_sided:
        for way in switch.initial:
            if (way.inp == 1) == (way.out == 1):
                raise BadInput(f"{way}: {NO_LINE} of a {row.name}")


NO_LINE = "expected a channel from or to port 1, the line"
DRIVER_GROUP = "patchlight.ocs_drivers"
"""Entry point group for external drivers of circuit switches."""
WSS_DRIVER_GROUP = "patchlight.wss_drivers"
"""Entry point group for external drivers of wavelength switches."""


def drivers_table(
    drivers: Iterable[OcsDriver] = (*_ROWS, *_WSS_ROWS[:-1]),
) -> str:
    """The Markdown table of the drivers: transport, tests, hardware."""
    head = ("driver", "transport", "emulated device", "hardware")
    rows = [
        (f"`{d.name}`", d.transport, d.tested_with, d.hardware)
        for d in drivers
    ]
    return "\n".join(
        f"| {' | '.join(row)} |" for row in (head, *rows)
    ).replace("\n", "\n|---|---|---|---|\n", 1)
