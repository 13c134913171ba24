"""The conformance suite on every driver of packet switches, each against a switch that forwards."""

import asyncio
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from patchlight.controller.circuits.dialect import Session
from patchlight.controller.packet_switches.conformance import (
    CHECKS,
    Check,
    leaves_what_others_set,
    notices_a_missing_port,
    releases_everything,
    run_check,
    sets_and_reads,
    stations,
)
from patchlight.controller.packet_switches.contract import (
    PacketSwitchDriver,
    Station,
    Wish,
)
from patchlight.controller.packet_switches.linux_bridge import LinuxBridge
from patchlight.controller.packet_switches.registry import open_packet_driver
from patchlight.controller.packet_switches.sonic import Sonic
from patchlight.emulation.fabric.plan import namespace_name
from patchlight.emulation.lab.emulated_lab import EmulatedLab
from patchlight.testbed.lab.model import PacketSwitch
from tests.support.house import ROOT, tokens_in
from tests.support.nic_spaces import ping
from tests.support.switch_lab import SwitchUnderTest, switch_lab
from tests.support.switch_shells import BridgeShell, SonicShell, SwitchShell
from tests.support.waiting import wait_until

PORTS = (1, 2, 3)
EXAMPLE = ROOT / "tests/support/packet_switch_driver.py"
every_check = pytest.mark.parametrize(
    "check", CHECKS, ids=lambda check: check.__name__
)


@every_check
def test_a_switch_that_learns(check: Check) -> None:
    switch = PacketSwitch("tor1", None, 4, driver="learning")
    asyncio.run(run_check(check, lambda: open_packet_driver(switch), PORTS))


@every_check
def test_a_driver_of_another_package(check: Check) -> None:
    assert tokens_in(EXAMPLE.read_text()) <= 400
    spec = spec_from_file_location("packet_switch_driver", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    switch = PacketSwitch(
        "tor1", None, 4, driver="example", address="memory:1"
    )
    asyncio.run(run_check(check, lambda: module.Example(switch, ""), PORTS))


class _Login:
    """A login on a switch in memory."""

    flooded = False
    trouble = ""

    def __init__(self, shell: SwitchShell) -> None:
        self._shell = shell

    async def close(self) -> None:
        pass

    async def run(
        self, command: str, text: str, timeout_s: float
    ) -> tuple[int, str, str]:
        return await self._shell.run(command, text)


class _InMemory:
    """A switch with a shell in memory, and its driver."""

    def __init__(self, driver: str) -> None:
        vlan = 100 if driver == "sonic" else None
        self.switch = PacketSwitch(
            "tor1", None, 4, driver=driver, address="memory:1", vlan=vlan
        )
        kind = BridgeShell if driver == "linux-bridge" else SonicShell
        self.shell: SwitchShell = kind(self.switch)

    def new_driver(self) -> PacketSwitchDriver:
        kind = LinuxBridge if isinstance(self.shell, BridgeShell) else Sonic

        async def login(_: Session) -> _Login:
            return _Login(self.shell)

        return kind(self.switch, "", login=login)

    async def meddle(self, station: Station, port: int) -> None:
        self.shell.enter(station.mac, self.switch.interface_names[port - 1])

    async def undo(self, station: Station, port: int) -> None:
        assert (
            self.shell.table[station.mac]
            == self.switch.interface_names[port - 1]
        )
        self.shell.enter(station.mac, None)

    async def remove(self, port: int) -> None:
        del self.shell.ports[self.switch.interface_names[port - 1]]

    async def restore(self, port: int) -> None:
        self.shell.ports = dict.fromkeys(self.switch.interface_names, True)


@pytest.fixture(params=["linux-bridge", "sonic"])
def in_memory(request: pytest.FixtureRequest) -> _InMemory:
    return _InMemory(request.param)


@every_check
def test_a_switch_with_a_shell_in_memory(
    check: Check, in_memory: _InMemory
) -> None:
    asyncio.run(run_check(check, in_memory.new_driver, PORTS))
    assert in_memory.shell.table == {}
    assert in_memory.shell.flooded == frozenset(
        in_memory.switch.interface_names
    )


def test_a_shell_in_memory_has_entries_of_others_and_loses_ports(
    in_memory: _InMemory,
) -> None:
    async def strays(
        driver: PacketSwitchDriver, ports: tuple[int, int, int]
    ) -> None:
        await leaves_what_others_set(
            driver, ports, in_memory.meddle, in_memory.undo
        )

    async def gone(
        driver: PacketSwitchDriver, ports: tuple[int, int, int]
    ) -> None:
        await notices_a_missing_port(
            driver, ports, in_memory.remove, in_memory.restore
        )

    asyncio.run(run_check(strays, in_memory.new_driver, PORTS))
    asyncio.run(run_check(gone, in_memory.new_driver, PORTS))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedLab]:
    with switch_lab(tmp_path_factory.mktemp("switches")) as made:
        yield made


with_sshd = [
    pytest.mark.root,
    pytest.mark.ovs,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("switches with an sshd"),
]


@pytest.fixture(
    params=[pytest.param(n, marks=with_sshd) for n in ("bridge1", "sonic1")]
)
def under_test(
    request: pytest.FixtureRequest, lab: EmulatedLab
) -> SwitchUnderTest:
    return SwitchUnderTest(lab, request.param)


@every_check
def test_a_switch_with_an_sshd(
    check: Check, under_test: SwitchUnderTest
) -> None:
    asyncio.run(
        run_check(check, lambda: open_packet_driver(under_test.switch), PORTS)
    )
    assert under_test.table() == {}


def test_an_entry_of_others_is_told_and_stays(
    under_test: SwitchUnderTest,
) -> None:
    async def meddle(station: Station, port: int) -> None:
        await asyncio.to_thread(under_test.meddle, station.mac, port)

    async def undo(station: Station, port: int) -> None:
        interface = under_test.switch.interface_names[port - 1]
        assert under_test.table()[station.mac] == interface
        await asyncio.to_thread(under_test.undo, station.mac, port)

    async def check(driver: object, ports: tuple[int, int, int]) -> None:
        await leaves_what_others_set(driver, ports, meddle, undo)  # type: ignore[arg-type]

    asyncio.run(
        run_check(check, lambda: open_packet_driver(under_test.switch), PORTS)
    )


def test_a_port_that_goes_is_noticed(under_test: SwitchUnderTest) -> None:
    async def remove(port: int) -> None:
        await asyncio.to_thread(under_test.lose_port, port)

    async def restore(port: int) -> None:
        await asyncio.to_thread(under_test.lose_port, port, again=True)

    async def check(driver: object, ports: tuple[int, int, int]) -> None:
        await notices_a_missing_port(driver, ports, remove, restore)  # type: ignore[arg-type]

    asyncio.run(
        run_check(check, lambda: open_packet_driver(under_test.switch), PORTS)
    )


def test_settings_from_before_are_restored(
    under_test: SwitchUnderTest,
) -> None:
    async def run() -> None:
        await run_check(
            CHECKS[1], lambda: open_packet_driver(under_test.switch), PORTS
        )

    def settings() -> str:
        path = "/var/lib/sonic/config_db.json"
        if under_test.is_sonic:
            return under_test.sudo(f"cat {path}")
        return under_test.sudo(
            "for f in /sys/class/net/br0/brif/*; do cat $f/learning "
            "$f/unicast_flood $f/broadcast_flood $f/proxyarp; done"
        )

    before = settings()
    asyncio.run(run())
    assert settings() == before


@pytest.mark.kernel
@pytest.mark.root
@pytest.mark.ovs
@pytest.mark.timeout(900)
def test_a_bridge_that_filters_vlans(tmp_path: Path) -> None:
    with switch_lab(tmp_path, "vlans") as made:
        bridge = SwitchUnderTest(made, "bridge1")
        try:
            bridge.sudo("ip link set br0 type bridge vlan_filtering 1")
        except subprocess.CalledProcessError:
            pytest.skip("this kernel's bridges cannot filter VLANs")
        bridge.sudo(
            "set -e; "
            f"for port in {' '.join(bridge.switch.interface_names)}; do "
            "bridge vlan del dev $port vid 1; "
            "bridge vlan add dev $port vid 10 pvid untagged; done; "
            "bridge vlan add dev br0 vid 10 self; "
            "ip link add link br0 name br0.10 type vlan id 10; ip link set br0.10 up"
        )
        switch = replace(bridge.switch, vlan=10)
        hosts = {host.server.name: host for host in made.lab.hosts}
        nics = [hosts[f"server{n}"].nic for n in PORTS]
        places = {
            Station(nic.mac, nic.address): n
            for n, nic in zip(PORTS, nics, strict=True)
        }

        async def forward() -> None:
            driver = open_packet_driver(switch)
            await driver.open()
            assert not (
                await driver.set_forwarding(Wish(places, frozenset(PORTS)))
            ).lacks
            await driver.close()

        asyncio.run(forward())
        assert bridge.table() == {
            s.mac: switch.interface_names[n - 1] for s, n in places.items()
        }
        wait_until(
            lambda: ping(
                namespace_name(made.lab.name, "server1"), str(nics[1].address)
            )
        )
        for check in (sets_and_reads, releases_everything):
            asyncio.run(
                run_check(check, lambda: open_packet_driver(switch), PORTS)
            )
        assert bridge.table() == {}


class SonicPorts:
    """The table PORT of an emulated switch that runs SONiC, for a while another one."""

    def __init__(
        self,
        under_test: SwitchUnderTest,
        rows: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._under_test = under_test
        self._rows = rows

    def __enter__(self) -> None:
        self._before = json.loads(
            self._under_test.sudo("cat /var/lib/sonic/config_db.json")
        )
        self._write({**self._before, "PORT": self._rows})

    def __exit__(self, *_: object) -> None:
        self._write(self._before)

    def _write(self, database: object) -> None:
        self._under_test.sudo(
            "cat >/var/lib/sonic/config_db.json", json.dumps(database)
        )


@pytest.mark.root
@pytest.mark.ovs
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("switches with an sshd")
@pytest.mark.parametrize(
    ("indices", "reasons"),
    [
        (
            ("1", "1", "1"),
            [
                "an ambiguous port 1: each of Ethernet1, Ethernet2, Ethernet3 has index"
            ],
        ),
        (
            (None, None, None),
            ["no port 1: none of Ethernet1, Ethernet2, Ethernet3 has index 1"],
        ),
        (
            ("0", "1", "2"),
            [
                "an ambiguous port 1: Ethernet1 has index 0, but the lab file's ports"
            ],
        ),
        (
            ("one", "2", "3"),
            ["no port 1: none of Ethernet1, Ethernet2, Ethernet3 has index 1"],
        ),
        (("2", "1", "3"), []),
    ],
)
def test_ports_of_sonic_without_an_index_of_their_own_get_nothing(
    lab: EmulatedLab, indices: Sequence[str | None], reasons: list[str]
) -> None:
    under_test = SwitchUnderTest(lab, "sonic1")
    names = under_test.switch.interface_names
    rows = {
        name: {} if index is None else {"index": index}
        for name, index in zip(names, indices, strict=True)
    }
    nics = stations(2)

    async def forward(
        interfaces: Sequence[str] = (),
    ) -> tuple[list[str], dict[str, str]]:
        switch = replace(under_test.switch, interfaces=tuple(interfaces))
        driver = open_packet_driver(switch)
        await driver.open()
        try:
            wish = Wish({nics[0]: 1, nics[1]: 3}, frozenset(PORTS))
            applied = await driver.set_forwarding(wish)
            table = await asyncio.to_thread(under_test.table)
            return [
                lack.reason
                for lack in applied.lacks
                if lack.station == nics[0]
            ], table
        finally:
            await driver.release()
            await driver.close()

    with SonicPorts(under_test, rows):
        said, table = asyncio.run(forward())
        assert all(
            words.startswith(reason)
            for words, reason in zip(said, reasons, strict=True)
        )
        assert all("'interfaces' in the lab file" in words for words in said)
        # The second one is port 1 where its index says so.
        assert table.get(nics[0].mac) == (None if reasons else names[1])
        # What the message says helps.
        said, table = asyncio.run(forward(names))
        assert (said, table[nics[0].mac]) == ([], names[0])
