"""Builds labs in Python step by step, like Mininet's ``Topo``.

build = LabBuilder("small", network="10.1.0.0/24")
build.switch("tor1")
for name in ("server1", "server2"):
    build.server(name, gpus=["A100"])
    build.fibre(name, "tor1", rate="40Gbps")
lab = build.lab()
"""

from collections.abc import Sequence
from ipaddress import AddressValueError, IPv4Network, NetmaskValueError
from typing import Any

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.ocs_drivers import OCS_DRIVERS
from patchlight.testbed.labfile.reader import LabFileError, parse_lab
from patchlight.testbed.labfile.writer import to_yaml


class LabBuilder:
    """Collects servers, switches and fibres; ``lab`` checks them like a lab file.

    Further keywords of each method are lab file keys with the same values: rates, times and losses
    are texts with units.
    """

    def __init__(
        self,
        name: str,
        *,
        network: str = "10.0.0.0/16",
        **keys: Any,
    ) -> None:
        self._name = name
        self._head = {"name": name, "network": network, **keys}
        try:
            self._addresses = IPv4Network(network).hosts()
        except (AddressValueError, NetmaskValueError, ValueError) as error:
            raise BadInput(
                f"{network!r} is not a network: expected one like '10.0.0.0/16'"
            ) from error
        self._servers: dict[str, dict[str, Any]] = {}
        self._switches: dict[str, dict[str, Any]] = {}
        self._circuit_switches: dict[str, dict[str, Any]] = {}
        self._sorting: dict[str, dict[str, dict[str, Any]]] = {
            "wavelength_switches": {},
            "passive_parts": {},
        }
        self._fibres: list[dict[str, Any]] = []
        self._peers: dict[str, str] = {}
        self._circuits: list[tuple[str, str]] = []

    def server(
        self,
        name: str,
        *,
        gpus: Sequence[str] = (),
        nics: int | None = None,
        rate: str | None = None,
        **keys: Any,
    ) -> str:
        """Add a server and return its name.

        ``gpus`` are models: the GPUs are ``gpu0``, ``gpu1``, …, each with a NIC ``nic0``, ``nic1``,
        … at the next free address. ``nics``: total number of NICs. ``rate``: of each NIC.
        """
        made = []
        for number in range(max(len(gpus), 1) if nics is None else nics):
            nic = {"name": f"nic{number}", "address": self._next_address()}
            nic |= {"gpu": f"gpu{number}"} if number < len(gpus) else {}
            made.append(nic | ({"rate": rate} if rate else {}))
        self._add(
            self._servers,
            {
                "name": name,
                "management": f"{name}:8471",
                "gpus": [
                    {"name": f"gpu{n}", "model": model}
                    for n, model in enumerate(gpus)
                ],
                "nics": made,
                **keys,
            },
        )
        return name

    def switch(
        self,
        name: str,
        *,
        ports: int | None = None,
        **keys: Any,
    ) -> str:
        """Add a packet switch and return its name. ``ports``: default is as many as are used."""
        number = len(self._switches) + 1
        self._add(
            self._switches,
            {
                "name": name,
                "datapath_id": number,
                "ports": ports,
                **keys,
            },
        )
        return name

    def ocs(
        self,
        name: str,
        *,
        driver: str = "calient-tl1",
        ports: int | None = None,
        **keys: Any,
    ) -> str:
        """Add an OCS and return its name. ``ports``: default is as many as are used."""
        port = OCS_DRIVERS.get(driver, OCS_DRIVERS["dry-run"]).port
        written = {
            "name": name,
            "driver": driver,
            "address": f"{name}:{port}",
            "ports": ports,
        }
        self._add(self._circuit_switches, {**written, **keys})
        return name

    def wavelength_switch(
        self,
        name: str,
        *,
        inputs: int,
        **keys: Any,
    ) -> str:
        """Add a wavelength switch (WSS) and return its name."""
        switch = {"name": name, "inputs": inputs, **keys}
        self._add(self._sorting["wavelength_switches"], switch)
        return name

    def passive_part(
        self,
        name: str,
        kind: str,
        *,
        ports: int,
        **keys: Any,
    ) -> str:
        """Add a coupler, awg or multiplexer and return its name."""
        part = {
            "name": name,
            "kind": kind,
            "ports": ports,
            **keys,
        }
        self._add(self._sorting["passive_parts"], part)
        return name

    def fibre(
        self,
        a: str,
        b: str,
        **keys: Any,
    ) -> tuple[str, str]:
        """Join two ports, each ``device.port`` or a device's next free one. Returns both."""
        ends = (self._port(a), self._port(b))
        for end, other in (ends, ends[::-1]):
            self._peers.setdefault(end, other)
        self._fibres.append({"ends": list(ends), **keys})
        return ends

    def circuit(self, a: str, b: str) -> None:
        """Add an initial two-way circuit between two ports whose fibres end on one OCS."""
        self._circuits.append((a, b))

    def lab(self) -> Lab:
        """The lab; ``BadInput`` with all mistakes. Write it to a file with ``write_lab``."""
        for a, b in self._circuits:
            self._connect(a, b)
        lists = {
            "servers": self._servers,
            "packet_switches": self._switches,
            "circuit_switches": self._circuit_switches,
            **self._sorting,
        }
        document = dict(self._head)
        for key, things in lists.items():
            if things:
                document[key] = [
                    self._whole(thing) for thing in things.values()
                ]
        if self._fibres:
            document["fibres"] = self._fibres
        self._circuits.clear()
        try:
            return parse_lab(to_yaml(document), self._name)
        except LabFileError as error:
            # Positions in generated text would not help.
            mistakes = "; ".join(issue.message for issue in error.issues)
            raise BadInput(f"lab {self._name}: {mistakes}") from error

    def _add(
        self, things: dict[str, dict[str, Any]], thing: dict[str, Any]
    ) -> None:
        name = thing["name"]
        if name in self._servers or self._with_ports(name) is not None:
            raise BadInput(
                f"lab {self._name} already has {name}: expected another name"
            )
        things[name] = thing

    def _with_ports(self, name: str) -> dict[str, Any] | None:
        known = (
            self._switches,
            self._circuit_switches,
            *self._sorting.values(),
        )
        return next((things[name] for things in known if name in things), None)

    def _next_address(self) -> str:
        address = next(self._addresses, None)
        if address is None:
            raise BadInput(
                f"the network {self._head['network']} is full",
                hint="use a larger network: LabBuilder(name, network='10.0.0.0/8')",
            )
        return str(address)

    def _port(self, text: str) -> str:
        if "." in text:
            return text
        if text in self._servers:
            names = [nic["name"] for nic in self._servers[text]["nics"]]
        elif (thing := self._with_ports(text)) is not None:
            count = max(
                thing.get("inputs", 0),
                thing.get("outputs", 0),
                thing.get("ports") or 0,
            )
            names = [
                str(n) for n in range(1, (count or len(self._peers) + 1) + 1)
            ]
        else:
            raise BadInput(
                f"lab {self._name} has no device {text!r}: add it before its fibres"
            )
        free = next(
            (name for name in names if f"{text}.{name}" not in self._peers),
            None,
        )
        if free is None:
            raise BadInput(f"every port of {text} already has a fibre")
        return f"{text}.{free}"

    def _whole(self, thing: dict[str, Any]) -> dict[str, Any]:
        """A device; its ports are counted if their number was not given."""
        if thing.get("ports", 0) is None:
            used = [end.rpartition(".") for end in self._peers]
            numbers = [
                int(port)
                for name, _, port in used
                if name == thing["name"] and port.isdecimal()
            ]
            return {**thing, "ports": max(numbers, default=1)}
        return {
            key: value for key, value in thing.items() if value not in ([], ())
        }

    def _connect(self, a: str, b: str) -> None:
        far = [self._peers.get(end, "") for end in (a, b)]
        devices = {end.rpartition(".")[0] for end in far}
        name = devices.pop() if len(devices) == 1 else ""
        if name not in self._circuit_switches:
            raise BadInput(
                f"circuit {a} – {b}: their fibres do not end on one OCS",
                hint="add the fibres first, and name ports like 'server1.nic0'",
            )
        circuit = "-".join(end.rpartition(".")[2] for end in far)
        circuits = self._circuit_switches[name].setdefault(
            "cross_connects", []
        )
        if circuit not in circuits:
            circuits.append(circuit)
