"""Whatever stands in a lab file, it is read, or refused with places: nothing else comes out."""

import string
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from patchlight.testbed.io.describe import described
from patchlight.testbed.lab.model import (
    CircuitSwitch,
    Endpoint,
    Fibre,
    Gpu,
    Lab,
    Nic,
    PacketSwitch,
    Route,
    Server,
    default_mac,
)
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.rules import SshAccess
from patchlight.testbed.labfile.reader import (
    LabFileError,
    builtin_lab,
    parse_lab,
)
from patchlight.testbed.labfile.schema import LabKeys
from patchlight.testbed.labfile.writer import write_lab

OFC2022 = builtin_lab("ofc2022").read_text(encoding="utf-8")


def read_or_refuse(text: str) -> None:
    try:
        lab = parse_lab(text)
    except LabFileError as error:
        mistakes = error.issues
    else:
        assert parse_lab(write_lab(lab)) == lab
        return
    assert mistakes
    # YAML ends a line in more ways than "\n".
    lines = len(text.splitlines()) + 1
    assert all(
        1 <= found.line <= lines and found.column >= 1 for found in mistakes
    )
    assert all(found.message.strip() for found in mistakes)


@given(st.text())
@example("\ud800")
@example("name: 0x")
@example("? \n: ")
@example("%TAG ! x\n---\n!a b")
@example("a: &a b\n*a : c")
def test_any_text(text: str) -> None:
    read_or_refuse(text)


@given(st.text(alphabet="[]{},:-?&*!|>'\"%@` \n\tab0#"))
def test_any_text_of_what_yaml_is_made_of(text: str) -> None:
    read_or_refuse(text)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.dates(),
    st.sampled_from(
        [
            "tor1.1",
            "1-2",
            "2>1",
            "40Gbps",
            "10.0.0.1",
            "10.0.0.0/24",
            "h:1",
            "1dB",
        ]
    ),
)
VALUES = (
    SCALARS
    | st.lists(SCALARS, max_size=2)
    | st.dictionaries(SCALARS, SCALARS, max_size=2)
)


def almost(schema: Mapping[str, Any]) -> st.SearchStrategy[object]:
    """Values of nearly the shape that this schema has."""
    if "properties" in schema:
        right = {
            name: almost(key) for name, key in schema["properties"].items()
        }
        return (
            st.fixed_dictionaries({}, optional={**right, "nmae": VALUES})
            | VALUES
        )
    if "items" in schema:
        return st.lists(almost(schema["items"]), max_size=3) | VALUES
    return VALUES


@given(almost(described(LabKeys)))
@example({"packet_switches": [{"telemetry": {}}]})
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_any_value_under_the_right_keys(document: object) -> None:
    read_or_refuse(yaml.safe_dump(document))


@given(st.data())
@settings(max_examples=200)
def test_the_papers_lab_with_a_part_overwritten(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(OFC2022)))
    length = data.draw(st.integers(0, 40))
    new = data.draw(st.text(alphabet=string.printable, max_size=12))
    read_or_refuse(OFC2022[:start] + new + OFC2022[start + length :])


NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,9}", fullmatch=True)
RATES = st.none() | st.integers(1, 10**13)
POWERS = st.just(0.0) | st.floats(-40, 20)
LOSSES = st.floats(0, 40)
PASSWORDS = st.sampled_from([None, "OCS_PASSWORD"])
SSH = st.tuples(
    st.sampled_from([None, "server1", "10.0.0.11", "fd00::11"]),
    st.integers(1, 65535),
    st.sampled_from([None, "admin"]),
    st.sampled_from([None, "~/.ssh/id_ed25519", "/keys/of the lab"]),
    st.sampled_from([None, f"SHA256:{'a1+/' * 10}xyz"]),
    *[st.none()] * 2,
) | st.builds(
    lambda jump, key: (None, 22, None, None, None, jump, key),
    st.sampled_from(
        ["gate", "me@gate.example.org:2222", "10.0.0.1:22", "[fd00::1]:65535"]
    ),
    st.sampled_from([None, f"SHA256:{'a1+/' * 10}xyz"]),
)
MODELS = st.tuples(
    st.text(max_size=10), st.sampled_from("aZ0"), st.text(max_size=9)
).map("".join)
MODELS = MODELS.filter(str.isprintable)

LAB_MAC = st.booleans()
WAYS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.sampled_from(["physical", "sriov", "macvlan", "veth"]),
        "mtu": st.just(9000),  # one size along each path
        "vlan": st.integers(1, 4094),
        "routes": st.just(
            (Route(IPv4Network("10.9.0.0/16"), IPv4Address("10.0.0.254")),)
        ),
        "dscp": st.integers(0, 63),
        "rdma": st.sampled_from(["exclusive", "shared", "none"]),
        "relock_s": st.floats(0, 20),
    },
).filter(
    lambda way: (
        (way.get("mode"), way.get("rdma"))
        not in {
            ("macvlan", "exclusive"),
            ("veth", "exclusive"),
            ("veth", "shared"),
        }
    )
)


@st.composite
def labs(draw: st.DrawFn) -> Lab:
    devices = draw(st.lists(NAMES, unique=True, max_size=8))
    kinds = [draw(st.integers(0, 2)) for _ in devices]
    addresses = iter(range(1, 250))
    servers = []
    packet = []
    circuit = []
    free: list[Endpoint] = []
    for number, (name, kind) in enumerate(
        zip(devices, kinds, strict=True), start=1
    ):
        if kind == 0:
            parts = draw(st.lists(NAMES, unique=True, max_size=6))
            served = parts[: len(parts) // 2]
            gpus = tuple(Gpu(part, draw(MODELS)) for part in served)
            nics = []
            for index, part in enumerate(parts[len(served) :]):
                address = IPv4Address("10.0.0.0") + next(addresses)
                macs = [
                    default_mac(address),
                    f"06:00:00:00:00:{address.packed[3]:02x}",
                ]
                mac, rate_bps, power_dbm = draw(
                    st.tuples(st.sampled_from(macs), RATES, POWERS)
                )
                gpu = served[index] if index < len(served) else None
                nic = Nic(
                    part,
                    address,
                    mac,
                    rate_bps,
                    gpu,
                    launch_power_dbm=power_dbm,
                )
                nics.append(
                    replace(
                        nic,
                        **draw(WAYS),
                        lab_mac=draw(LAB_MAC) and mac == macs[0],
                    )
                )
                free.append(Endpoint(name, part))
            management = draw(
                st.sampled_from(
                    [None, f"10.1.0.{number}:8471", f"unix:/a/{name}"]
                )
            )
            ssh = SshAccess(*draw(SSH))
            servers.append(Server(name, management, gpus, tuple(nics), ssh))
        else:
            ports = draw(st.integers(1, 6))
            free += [Endpoint(name, str(port)) for port in range(1, ports + 1)]
            if kind == 1:
                packet.append(
                    PacketSwitch(name, number * 2**40, ports, draw(POWERS))
                )
            else:
                outputs = draw(st.permutations(range(1, ports + 1)))
                pairs = zip(
                    range(1, draw(st.integers(0, ports)) + 1),
                    outputs,
                    strict=False,
                )
                initial = PortMap.of((i, o) for i, o in pairs if i != o)
                drawn = (
                    draw(st.floats(0, 10)),
                    draw(LOSSES),
                    "admin",
                    draw(PASSWORDS),
                    initial,
                )
                at = f"10.2.0.{number}:3082"
                circuit.append(
                    CircuitSwitch(name, "calient-tl1", at, ports, *drawn)
                )
    ends = draw(st.permutations(free)) if free else []
    return Lab(
        name=draw(NAMES),
        network=IPv4Network("10.0.0.0/24"),
        servers=tuple(servers),
        packet_switches=tuple(packet),
        circuit_switches=tuple(circuit),
        fibres=tuple(
            Fibre(a, b, draw(RATES), draw(LOSSES))
            for a, b in zip(ends[::2], ends[1::2], strict=False)
            if a.device != b.device
        ),
        fabric=draw(st.sampled_from(["openvswitch", "bridge"])),
        paths=draw(st.sampled_from(["none", "nodes"])),
        scale=draw(st.sampled_from([1.0, 1000.0, 2.5, 1e-3])),
        controller_api=draw(
            st.sampled_from(["127.0.0.1:8470", "localhost:1"])
        ),
    )


@given(labs())
@settings(max_examples=150)
def test_a_written_lab_reads_back_equal(lab: Lab) -> None:
    assert parse_lab(write_lab(lab)) == lab


def test_the_papers_lab_written_and_read_again() -> None:
    lab = parse_lab(OFC2022)
    text = write_lab(lab)
    assert parse_lab(text) == lab
    # Short enough to be read: no default is spelled out, and fibres are one line each.
    assert "mac" not in text
    assert len(text.splitlines()) < len(OFC2022.splitlines())


@pytest.mark.parametrize(
    "model",
    [
        "0E0",
        "3090",
        "0o17",
        "0x1F",
        "null",
        "0b1",
        "true",
        "1.5",
        "on",
        "a: b",
        "- a",
    ],
)
def test_a_text_that_looks_like_something_else_is_written_in_quotes(
    model: str,
) -> None:
    nic = Nic(
        "n",
        IPv4Address("10.0.0.1"),
        default_mac(IPv4Address("10.0.0.1")),
        gpu="g",
    )
    server = Server("s", None, (Gpu("g", model),), (nic,))
    lab = Lab("x", IPv4Network("10.0.0.0/24"), (server,))
    assert parse_lab(write_lab(lab)) == lab
