"""Packets through emulated labs of transceivers, wavelength switches and stars."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from patchlight.controller.circuits.registry import open_driver
from patchlight.emulation.lab.emulated_lab import EmulatedLab
from patchlight.emulation.lab.hosts import EmulatedHost
from patchlight.emulation.lab.options import LabKeywords
from patchlight.testbed.lab.spectrum import SpectrumMap
from patchlight.testbed.lab.tuning import LightClient
from patchlight.testbed.lab.wavelengths import WavelengthSwitch
from patchlight.testbed.labfile.reader import parse_lab
from tests.support.emulated_labs import left_of, pings
from tests.support.waiting import wait_until

pytestmark = pytest.mark.root

NAME = f"oddl4-{os.getpid()}"


@pytest.fixture
def lab() -> Iterator[EmulatedLab]:
    with EmulatedLab.from_file(
        "oddl4",
        1000,
        name=NAME,
        replace=True,
        fabric="bridge",
        controller=False,
    ) as emulated:
        yield emulated
    assert left_of(NAME) == []


def lost(lab: EmulatedLab) -> set[tuple[int, int]]:
    """The pairs of servers of which the first has no answer from the second."""
    for host in lab.hosts:
        host.run("ip neigh flush all")
    return {(int(a[6]), int(b[6])) for a, b in lab.pingall(wait_s=0.25).lost}


def test_packets_go_where_light_goes(lab: EmulatedLab) -> None:
    with lab.light as light:
        assert lost(lab) == set()
        _collide(lab, light)
        _two_networks(lab, light)
        _cut(lab)


def _collide(lab: EmulatedLab, light: LightClient) -> None:
    before = light.losses()["destroyed"]
    assert before == {}
    light.tune("server1.nic0", "193.150")
    # Server 2 is on that channel, so 3 and 4 hear neither; 1 and 2 hear each other.
    assert lost(lab) == {(a, b) for a in (1, 2) for b in (3, 4)} | {
        (b, a) for a in (1, 2) for b in (3, 4)
    }
    destroyed = light.losses()["destroyed"]
    assert set(destroyed) == {"star1.3", "star1.4"}
    assert all(count >= 2 for count in destroyed.values())
    shown = subprocess.run(
        [
            sys.executable,
            "-m",
            "patchlight",
            "emulate",
            "tune",
            "server1",
            "off",
            "--lab",
            NAME,
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "off" in shown
    assert "frames destroyed on the fibre at star1.3" in shown
    # Who is dark sends nothing, and disturbs nobody.
    assert lost(lab) == {(1, b) for b in (2, 3, 4)} | {
        (b, 1) for b in (2, 3, 4)
    }
    assert light.losses()["dark"]["server1.nic0"] > 0


def _two_networks(lab: EmulatedLab, light: LightClient) -> None:
    """The drivers of two wavelength switches move their servers to the other star."""

    async def move(switch: WavelengthSwitch) -> None:
        wanted = SpectrumMap.parse(["1-3@193.175/200"])
        driver = open_driver(switch)
        await driver.open()
        try:
            assert (await driver.disconnect(switch.initial)).complete
            assert (await driver.connect(wanted)).complete
        finally:
            await driver.close()

    for switch in lab.lab.wavelength_switches[2:]:
        asyncio.run(move(switch))
    # The same two channels in both networks.
    for port, channel in (
        ("server1", "193.100"),
        ("server3", "193.100"),
        ("server4", "193.150"),
    ):
        light.tune(f"{port}.nic0", channel)
    assert lost(lab) == {(a, b) for a in (1, 2) for b in (3, 4)} | {
        (b, a) for a in (1, 2) for b in (3, 4)
    }


def _cut(lab: EmulatedLab) -> None:
    fibre = lab.wires.between("star1.1", "wss1.2")
    lab.wires.set_up(fibre, up=False)
    wait_until(lambda: (1, 2) in lost(lab), "the cut fibre to be dark")
    lab.wires.set_up(fibre, up=True)
    wait_until(lambda: (1, 2) not in lost(lab), "the fibre to be lit again")


SENSITIVE = """
name: sensitive
network: 10.0.0.0/24
fabric: bridge
defaults:
  nic: {transceiver: {tunable: 193.100-193.150, sensitivity: -12dBm}}
servers: [{name: "server[1-2]", nics: [{name: nic0, address: "10.0.0.[1-2]"}]}]
wavelength_switches:
  - {name: wss1, inputs: 2, cross_connects: ["1-2@193.100", "1>2@193.150-6dB"]}
fibres: ["server[1-2].nic0 - wss1.[1-2]"]
"""


def test_a_nic_that_no_light_arrives_at_has_no_carrier() -> None:
    lab = parse_lab(SENSITIVE)
    options = LabKeywords(controller=False)
    name = f"dark{os.getpid()}"
    with EmulatedLab.from_lab(
        lab, name=name, replace=True, **options
    ) as emulated:
        one, two = emulated.hosts
        with emulated.light as light:
            assert (_carrier(one), _carrier(two)) == (True, True)
            # 6 dB less than on the first channel: too weak for server 2, whose light still comes.
            light.tune("server1.nic0", "193.150")
            assert (_carrier(one), _carrier(two)) == (True, False)
            light.darken("server2.nic0")
            assert (_carrier(one), _carrier(two)) == (False, False)
            fibres = emulated.wires.states(lab.fibres)
            assert all(state.up for state in fibres)
            # Out of the dark at both ends.
            light.tune("server2.nic0", "193.100")
            light.tune("server1.nic0", "193.100")
            assert (_carrier(one), _carrier(two)) == (True, True)
            # The kernel lets a link carry some time after it has a carrier.
            wait_until(lambda: pings(one, two), "the link to carry")


def _carrier(host: EmulatedHost) -> bool:
    return "LOWER_UP" in host.run("ip -o link show nic0").output
