"""Counters and LLDP of packet switches by SNMP: of net-snmp and lldpd, in a network namespace."""

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from patchlight.controller.packet_switches.snmp import SnmpFailed
from patchlight.controller.packet_switches.telemetry import (
    Interfaces,
    Octets,
    Telemetry,
    interfaces_of,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile.reader import parse_lab
from patchlight.testbed.linux import namespaces
from patchlight.testbed.wire.probe_frames import LldpNeighbour, lldp_probe
from tests.support.agent_bench import ip
from tests.support.waiting import (
    PATIENCE_S,
    eventually,
    unix_socket_answers,
    wait_until,
)

HERE = "{address: '127.0.0.1:1161'}"
USER = [
    "createUser reader SHA-256 authpass1 AES privpass1",
    "rouser reader authpriv",
]
WITH_COMMUNITY = "{address: '127.0.0.1:1161', community_env: COMMUNITY}"
V3 = (
    "{address: '127.0.0.1:1161', user: reader, auth_env: AUTH, priv_env: PRIV}"
)


def _lab(snmp: str = HERE, ports: int = 4, extra: str = "") -> Lab:
    numbers = range(1, ports + 1)
    servers = [
        f"{{name: h{n}, nics: [{{name: nic0, address: 10.0.0.{n}}}]}}"
        for n in numbers
    ]
    switch = f"name: tor1, datapath_id: 1, ports: {ports}, telemetry: {{snmp: {snmp}}}{extra}"
    fibres = [f"h{n}.nic0 - tor1.{n}" for n in numbers]
    return parse_lab(
        f"name: x\nnetwork: 10.0.0.0/24\nservers: [{', '.join(servers)}]\n"
        f"packet_switches: [{{{switch}}}]\nfibres: [{', '.join(fibres)}]\n"
    )


# --- which interface is which port --------------------------------------------------------------

TWO_BRIDGES = {
    10 * tor + n: f"tor{tor}-{n}" for tor in (1, 2) for n in range(1, 5)
}
ETH = {n: f"Eth{n}" for n in range(20)}
SLOTS = {
    10 * slot + n: f"Eth{slot}/{n}" for slot in (1, 2) for n in range(1, 5)
}
SWP = {1: "lo", 2: "eth0", 11: "swp1", 12: "swp2", 13: "swp3", 14: "swp4"}


@pytest.mark.parametrize(
    ("extra", "names", "about", "indices"),
    [
        ("", SWP, {}, [11, 12, 13, 14]),
        ("", TWO_BRIDGES, {}, [11, 12, 13, 14]),
        (
            "",
            SWP,
            {11: "tor1.4", 12: "tor1.3", 13: "tor1.2", 14: "tor1.1"},
            [14, 13, 12, 11],
        ),
        (", interfaces: [Eth0, Eth4, Eth8, Eth12]", ETH, {}, [0, 4, 8, 12]),
        (
            ", interfaces: ['7', '6', '5', '4']",
            dict.fromkeys(range(9), "port"),
            {},
            [7, 6, 5, 4],
        ),
    ],
)
def test_the_interface_of_a_port_is_told_by_lab_file_description_or_name(
    extra: str,
    names: Mapping[int, str],
    about: Mapping[int, str],
    indices: Sequence[int],
) -> None:
    (switch,) = _lab(extra=extra).packet_switches
    matched = interfaces_of(switch, {1, 2, 3, 4}, Interfaces(names, {}, about))
    assert matched.found == dict(zip(range(1, 5), indices, strict=True))
    assert matched.missing == {}


@pytest.mark.parametrize(
    ("extra", "names", "about", "said"),
    [
        ("", {1: "lo", 2: "Gi0/x"}, {}, "no names fit"),
        ("", SLOTS, {}, "Eth1/1, Eth2/1"),
        (
            "",
            {**SWP, 15: "swp3"},
            {},
            "an ambiguous port 3: each of swp3, swp3 is named swp3",
        ),
        (
            "",
            SWP,
            {11: "tor1.1", 12: "tor1.1"},
            "port 1: each of swp1, swp2 is named tor1.1",
        ),
        (
            "",
            {**SWP, 15: "tor1.1"},
            {12: "tor1.1"},
            "port 1: each of swp2, tor1.1 is named",
        ),
        (
            ", interfaces: [a, b, c, d]",
            SWP,
            {},
            "no port 1: none of lo, eth0, swp1,",
        ),
        (
            ", interfaces: ['2', b, c, d]",
            {**SWP, 15: "2"},
            {},
            "port 1: each of eth0, 2 is named",
        ),
        (
            ", interfaces: [swp1, '11', swp3, swp4]",
            SWP,
            {},
            "port 1: swp1 is ports 1, 2",
        ),
        (
            "",
            {n + 5: f"lan{n}" for n in range(6)},
            {},
            "those of lan begin with 0",
        ),
    ],
)
def test_an_uncertain_interface_is_one_line_that_names_the_remedy(
    extra: str, names: Mapping[int, str], about: Mapping[int, str], said: str
) -> None:
    (switch,) = _lab(extra=extra).packet_switches
    try:
        missing = interfaces_of(
            switch, {1, 2, 3, 4}, Interfaces(names, {}, about)
        ).missing
        words = missing[min(missing)]
    except SnmpFailed as failed:
        words = failed.message
    assert said in words
    assert "interfaces" in words
    assert "\n" not in words


def test_the_long_name_of_an_interface_is_one_of_its_names() -> None:
    (switch,) = _lab(
        extra=", interfaces: [Eth0, Ethernet1, Eth2, Ethernet3]"
    ).packet_switches
    names, long_names = (
        {n: f"{kind}{n}" for n in range(5)} for kind in ("Eth", "Ethernet")
    )
    matched = interfaces_of(
        switch, {1, 2, 3, 4}, Interfaces(names, long_names, {})
    )
    assert matched.found == {1: 0, 2: 1, 3: 2, 4: 3}


# --- with net-snmp and lldpd --------------------------------------------------------------------


@dataclass
class Switch:
    """A namespace with ports swp1, …, each a veth whose other end is h1x, …"""

    name: str
    folder: Path

    @property
    def namespace(self) -> Path:
        return namespaces.namespace_path(self.name)

    def received(self, port: int) -> int:
        counter = f"/sys/class/net/swp{port}/statistics/rx_bytes"
        command = ["ip", "netns", "exec", self.name, "cat", counter]
        return int(
            subprocess.run(command, check=True, capture_output=True).stdout
        )

    def send(self, port: int, frame: bytes, times: int = 1) -> None:
        with namespaces.entered(self.namespace):
            sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            sender.bind((f"h{port}x", 0))
        with sender:
            for _ in range(times):
                sender.send(frame)

    @contextmanager
    def answering(self, *lines: str, lldp: bool = False) -> Iterator[None]:
        """With an SNMP agent of this configuration."""
        config = self.folder / "snmpd.conf"
        joined = self.folder / "agentx"
        own = [
            "agentaddress udp:127.0.0.1:1161",
            "master agentx",
            f"agentXSocket {joined}",
        ]
        config.write_text(
            "\n".join([*own, *(lines or ["rocommunity public"]), ""])
        )
        state = f"--persistentDir={self.folder}/state"
        commands = [
            [
                "/usr/sbin/snmpd",
                "-f",
                "-LE",
                "3",
                "-C",
                "-c",
                str(config),
                state,
            ]
        ]
        sockets = [joined]
        if lldp:
            control = Path(f"/tmp/{self.name}.lldpd")
            setting = Path(f"/tmp/{self.name}.conf")
            setting.write_text("configure system hostname tor1\n")
            options = ["-I", "swp*", "-u", str(control), "-O", str(setting)]
            commands.append(
                ["/usr/sbin/lldpd", "-d", "-x", "-X", str(joined), *options]
            )
            sockets.append(control)
        running = []
        try:
            for command, answers in zip(commands, sockets, strict=True):
                run = ["ip", "netns", "exec", self.name, *command]
                running.append(subprocess.Popen(run, env={"MIBS": ""}))
                wait_until(
                    lambda at=answers: unix_socket_answers(at),  # type: ignore[misc]
                    command[0],
                )
            yield
        finally:
            for process in running:
                process.terminate()
                process.wait(30)
            for path in (*sockets, *([setting] if lldp else [])):
                path.unlink(missing_ok=True)


@contextmanager
def _made(folder: Path, ports: int = 4) -> Iterator[Switch]:
    name = f"pl.test-{os.getpid()}-switch"
    lines = ["link set lo up"]
    for n in range(1, ports + 1):
        lines.append(f"link add swp{n} type veth peer name h{n}x")
        lines += [f"link set {end} up" for end in (f"swp{n}", f"h{n}x")]
    batch = folder / "links"
    batch.write_text("\n".join(lines))
    namespaces.create(name)
    try:
        ip("-n", name, "-batch", str(batch))
        yield Switch(name, folder)
    finally:
        namespaces.delete(name)


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[Switch]:
    with _made(tmp_path) as made:
        yield made


@pytest.fixture
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMUNITY", "secret")
    monkeypatch.setenv("AUTH", "authpass1")
    monkeypatch.setenv("PRIV", "privpass1")
    monkeypatch.setenv("WRONG", "wrongpass")


@pytest.mark.root
@pytest.mark.snmp
@pytest.mark.usefixtures("_secrets")
@pytest.mark.parametrize("snmp", [WITH_COMMUNITY, V3])
async def test_64_ports_count_as_in_the_kernel(
    tmp_path: Path, snmp: str
) -> None:
    readings: list[Mapping[int, Octets]] = []
    with (
        _made(tmp_path, 64) as switch,
        switch.answering("rocommunity secret", *USER),
    ):
        telemetry = Telemetry(
            _lab(snmp, 64),
            lambda _, __, octets: readings.append(octets),
            switch.namespace,
        )
        polling = asyncio.create_task(telemetry.run())
        await eventually(lambda: readings, "a first reading")
        for port in (1, 40, 64):
            switch.send(port, bytes(1000), times=100 * port)
        sent = {port: switch.received(port) for port in (1, 40, 64)}
        assert sent[64] >= 6_400_000
        await eventually(
            lambda: all(
                readings[-1][port][0] >= there for port, there in sent.items()
            ),
            "these counters",
        )
        for port, there in sent.items():
            assert readings[-1][port][0] == pytest.approx(there, rel=0.01)
        assert len(readings[-1]) == 64
        assert telemetry.problems == {"tor1": None}
        polling.cancel()
        telemetry.close()


@pytest.mark.root
@pytest.mark.snmp
@pytest.mark.usefixtures("_secrets")
@pytest.mark.parametrize(
    ("snmp", "lines", "said"),
    [
        (
            HERE.replace("}", ", community_env: WRONG}"),
            ["rocommunity secret"],
            "in WRONG to read",
        ),
        (
            HERE.replace("1161", "1162"),
            [],
            "no SNMP answer from tor1 at 127.0.0.1:1162",
        ),
        (
            HERE.replace("}", ", user: other}"),
            USER,
            "refuses the SNMP user other: Unknown USM",
        ),
        (
            V3.replace("AUTH", "WRONG"),
            USER,
            "refuses the SNMP user reader: Wrong SNMP PDU digest",
        ),
        (
            HERE,
            ["rocommunity public default .1.3.6.1.2.1.2"],
            "shows no ifXTable",
        ),
    ],
)
async def test_what_is_wrong_is_told_in_a_line(
    switch: Switch, snmp: str, lines: list[str], said: str
) -> None:
    with switch.answering(*lines):
        telemetry = Telemetry(
            _lab(snmp), lambda *_: pytest.fail("counted"), switch.namespace
        )
        polling = asyncio.create_task(telemetry.run())
        await eventually(lambda: telemetry.problems["tor1"], "a problem")
        problem = telemetry.problems["tor1"] or ""
        assert said in problem
        assert "\n" not in problem
        polling.cancel()
        telemetry.close()


def test_a_secret_that_is_not_set_is_told_at_the_start() -> None:
    lab = _lab("{address: '127.0.0.1:1161', community_env: NOT_SET_ANYWHERE}")
    with pytest.raises(
        BadInput,
        match=r"NOT_SET_ANYWHERE for the SNMP community of tor1 is not set",
    ):
        Telemetry(lab, lambda *_: None)


@pytest.mark.root
@pytest.mark.snmp
async def test_traffic_counts_the_same_as_in_the_kernel(
    switch: Switch,
) -> None:
    """Within one second's traffic: net-snmp's counters are up to 3 s old, and it does not say how
    old. On a quiet machine a minute differs by 0.3 %."""
    by_snmp = list[tuple[float, int]]()
    in_kernel = list[tuple[float, int]]()

    async def send_and_look() -> None:
        # What a busy machine holds up is not made up for: a burst is not in counters of before it.
        while True:
            await asyncio.to_thread(switch.send, 2, bytes(1000), 20)
            in_kernel.append(
                (time.time(), await asyncio.to_thread(switch.received, 2))
            )
            await asyncio.sleep(0.1)  # the pause between two looks

    def count(_: str, at: float, octets: Mapping[int, Octets]) -> None:
        by_snmp.append((at, octets[2][0]))

    def there(at: float) -> float:
        times, octets = zip(*in_kernel, strict=True)
        return float(np.interp(at, times, octets))

    with switch.answering():
        telemetry = Telemetry(_lab(), count, switch.namespace)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(send_and_look()),
                tasks.create_task(telemetry.run()),
            ]
            await eventually(lambda: by_snmp, "counters")
            await eventually(
                lambda: by_snmp[-1][0] - by_snmp[0][0] > 20, "20 s"
            )
            for task in running:
                task.cancel()
        telemetry.close()
    began, first = by_snmp[0]
    ended, last = by_snmp[-1]
    sent = there(ended) - there(began)
    assert sent > 200_000
    assert last - first == pytest.approx(sent, abs=200 * 1000)


# As BRIDGE-MIB and Q-BRIDGE-MIB of a switch, which Debian's net-snmp lacks: from the kernel's FDB.
_BRIDGE_MIB = """#!/usr/bin/python3
import json, subprocess, sys
from pathlib import Path

def table():
    rows, fdb = {}, subprocess.run(["/sbin/bridge", "-j", "fdb", "show", "br", "br0"],
                                   capture_output=True, text=True).stdout
    for at in Path("/sys/class/net/br0/brif").iterdir():
        port = int((at / "port_no").read_text(), 0)
        rows[1, 4, 1, 2, port] = Path(f"/sys/class/net/{at.name}/ifindex").read_text().strip()
        for row in json.loads(fdb):
            if row["ifname"] == at.name and row.get("state") != "permanent":
                mac = [int(part, 16) for part in row["mac"].split(":")]
                rows[(*COLUMN, *mac)] = port
    return sorted(rows.items())

COLUMN = tuple(map(int, sys.argv[1].split(".")))
while line := sys.stdin.readline():
    if line.strip() == "PING":
        print("PONG", flush=True)
        continue
    exact, oid = line.strip() == "get", sys.stdin.readline().strip()
    after = tuple(map(int, oid.strip(".").split(".")))[len(%r):]
    fit = [row for row in table() if (row[0] == after if exact else row[0] > after)]
    if fit:
        words = ".".join(map(str, (*%r, *fit[0][0])))
        print(f".{words}", "integer", fit[0][1], sep="\\n", flush=True)
    else:
        print("NONE", flush=True)
"""


@pytest.mark.root
@pytest.mark.snmp
# With and without VLANs.
@pytest.mark.parametrize("column", ["7.1.2.2.1.2.1", "4.3.1.2"])
async def test_a_switch_tells_behind_which_port_a_mac_is(
    switch: Switch, column: str
) -> None:
    bridge = (1, 3, 6, 1, 2, 1, 17)
    mac = "02:00:00:00:00:2a"
    script = switch.folder / "bridge-mib"
    script.write_text(_BRIDGE_MIB % (bridge, bridge))
    script.chmod(0o755)
    ip("-n", switch.name, "link", "add", "br0", "type", "bridge")
    for end in ("swp1", "swp2", "swp3", "swp4", "br0"):
        master = [] if end == "br0" else ["master", "br0"]
        ip("-n", switch.name, "link", "set", end, *master, "up")
    passed = f"pass_persist .{'.'.join(map(str, bridge))} {script} {column}"
    with switch.answering("rocommunity public", passed):
        telemetry = Telemetry(_lab(), lambda *_: None, switch.namespace)
        assert await telemetry.behind([mac]) == {}
        for port in (3, 1):
            frame = bytes.fromhex(
                "ffffffffffff" + mac.replace(":", "")
            ) + bytes(60)
            switch.send(port, frame)
            deadline = time.monotonic() + PATIENCE_S
            while await telemetry.behind([mac]) != {mac: f"tor1.{port}"}:
                assert time.monotonic() < deadline, (
                    f"{mac} is not seen at port {port}"
                )
        assert await telemetry.behind(["02:00:00:00:00:2b"]) == {}
        telemetry.close()


@pytest.mark.root
@pytest.mark.snmp
@pytest.mark.parametrize("one_mac", [False, True])
async def test_a_switch_tells_which_probes_and_which_neighbours_it_hears(
    switch: Switch, one_mac: bool
) -> None:
    for n in range(1, 5) if one_mac else ():
        ip(
            "-n",
            switch.name,
            "link",
            "set",
            f"swp{n}",
            "address",
            "02:00:00:00:07:07",
        )
    with switch.answering(lldp=True):
        telemetry = Telemetry(_lab(), lambda *_: None, switch.namespace)
        heard = await telemetry.heard("tor1", "t-2")
        assert heard is not None
        assert heard.ends == heard.up == {f"tor1.{n}" for n in range(1, 5)}
        assert await telemetry.heard("tor9", "t-2") is None
        # The chassis' MAC, port 3, for two minutes, named tor9x.
        header = "0180c200000e02000000000988cc"
        name = "0a05746f723978"
        stranger = bytes.fromhex(
            f"{header}0207040200000000aa0402053306020078{name}0000"
        )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            # What was heard in another round is none of this one.
            switch.send(1, lldp_probe("h1.nic0", "t-1", "02:00:00:00:00:01"))
            switch.send(2, lldp_probe("h3.nic0", "t-2", "02:00:00:00:00:03"))
            switch.send(4, stranger)
            heard = await telemetry.heard("tor1", "t-2")
            assert heard is not None
            if heard.probes and heard.neighbours:
                break
            assert time.monotonic() < deadline, heard
            await asyncio.sleep(0.1)  # the pause between two looks
        assert heard.probes == {("h3.nic0", "tor1.2")}
        assert heard.neighbours == {(LldpNeighbour("tor9x", "3"), "tor1.4")}
        ip("-n", switch.name, "link", "set", "h4x", "down")
        deadline = time.monotonic() + PATIENCE_S
        while True:  # the agent caches states for some seconds
            again = await telemetry.heard("tor1", "t-2")
            assert again is not None
            if (again.up, again.neighbours) == (
                {"tor1.1", "tor1.2", "tor1.3"},
                set(),
            ):
                break
            assert time.monotonic() < deadline, again
            await asyncio.sleep(0.1)  # the pause between two looks
        assert ("tor1 swp3", "tor1.3") in telemetry.claims()
        telemetry.close()


@pytest.mark.root
@pytest.mark.snmp
async def test_a_port_that_goes_is_told_and_the_others_count(
    switch: Switch,
) -> None:
    """Of a switch without a driver, which nobody else asks."""
    lab = _lab()
    (tor1,) = lab.packet_switches
    lab = lab.with_changes(
        packet_switches=(replace(tor1, driver="learning", datapath_id=None),)
    )
    counted: list[Mapping[int, Octets]] = []
    missing: list[Mapping[int, str]] = []
    telemetry = Telemetry(
        lab,
        lambda _, __, octets: counted.append(octets),
        switch.namespace,
        lambda _, ports: missing.append(ports),
    )
    # By default net-snmp keeps the row of an interface that is gone for five minutes.
    with switch.answering("rocommunity public", "interface_fadeout 1"):
        polling = asyncio.create_task(telemetry.run())
        await eventually(
            lambda: counted and len(counted[-1]) == 4, "the counters"
        )
        assert not any(missing)
        ip("-n", switch.name, "link", "del", "swp3")
        await eventually(lambda: missing[-1], "a missing port")
        (words,) = missing[-1].values()
        assert words.startswith("no port 3: none of lo, ")
        assert "… is named swp3: " in words
        await eventually(
            lambda: len(counted[-1]) == 3, "the counters of the others"
        )
        said = "tor1 has no port 3: none of lo, "
        await eventually(
            lambda: said in str(telemetry.problems["tor1"]), "the reason"
        )
        ip(
            "-n",
            switch.name,
            "link",
            "add",
            "swp3",
            "type",
            "veth",
            "peer",
            "name",
            "h3x",
        )
        await eventually(
            lambda: not missing[-1] and len(counted[-1]) == 4, "it to be back"
        )
        await eventually(
            lambda: telemetry.problems["tor1"] is None, "no problem"
        )
        polling.cancel()
        telemetry.close()
