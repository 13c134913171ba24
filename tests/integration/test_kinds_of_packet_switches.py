"""The same lab with each kind of packet switch, and with all kinds: what jobs notice of changes."""

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from patchlight import EmulatedLab
from patchlight.agents.nics.state import link_local
from patchlight.client.client import ControllerClient
from patchlight.client.connection import ControllerError
from patchlight.emulation.fabric.build import OpenVSwitch
from patchlight.emulation.fabric.plan import fabric_namespace, namespace_name
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.model import PacketSwitch
from patchlight.testbed.lab.packet_drivers import PACKET_DRIVERS
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.namespaces import namespace_path
from patchlight.testbed.linux.processes import command_line
from tests.support.agent_bench import ip
from tests.support.lab_jobs import checked_iterations, connected, ended
from tests.support.lab_processes import controller_of, until_controller_answers
from tests.support.nic_spaces import ping
from tests.support.switch_lab import static_entries
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.ovs, pytest.mark.timeout(600)]

HOSTS = range(1, 5)
KINDS = {kind: (kind, kind) for kind in PACKET_DRIVERS} | {
    "all": tuple(PACKET_DRIVERS)
}
KEYS = {
    "openflow": "datapath_id: 0x{n}",
    "linux-bridge": "address: tor{n}:22",
    "sonic": "address: tor{n}:22, vlan: 100",
}


def lab_of(
    folder: Path, kinds: Sequence[str], more: str = "", trunks: str = "chain"
) -> Path:
    """Four hosts, whose NICs an OCS connects to any switch: port 1 to 4 of each. Switches have a
    trunk to the next, or to the OCS (its ports 41 to 44)."""
    count = len(kinds)
    lines = [
        "name: kinds",
        "network: 192.168.31.0/24",
        "queue: {preempt: true, quantum: 1s}",
        "servers:",
    ]
    for n in HOSTS:
        nic = f"{{name: nic0, address: 192.168.31.{10 + n}, gpu: gpu0}}"
        lines += [
            f"  - {{name: server{n}, gpus: [{{name: gpu0, model: T4}}],",
            f"     nics: [{nic}]}}",
        ]
    lines.append("packet_switches:")
    for n, kind in enumerate(kinds, 1):
        keys = KEYS.get(kind, "").format(n=n) + more
        lines.append(
            f"  - {{name: tor{n}, driver: {kind}, ports: 6, {keys}}}".replace(
                ", }", "}"
            )
        )
    first = [f"{n}-{at(1 + (n - 1) % count, n)}" for n in HOSTS]
    first += ["41-43", "42-44"] if trunks == "ocs" else []
    lines += ["circuit_switches:", "  - name: ocs1", "    driver: calient-tl1"]
    lines += [
        "    address: 10.0.0.5:3082",
        "    ports: 64",
        "    switching_time: 25ms",
    ]
    lines += [f"    cross_connects: [{', '.join(first)}]", "fibres:"]
    lines += [f"  - server{n}.nic0 - ocs1.{n}" for n in HOSTS]
    lines += [
        f"  - tor{s}.{n} - ocs1.{at(s, n)}"
        for s in range(1, count + 1)
        for n in HOSTS
    ]
    if trunks == "ocs":
        lines += [
            f"  - tor{s}.{4 + n} - ocs1.{38 + 2 * s + n}"
            for s in (1, 2)
            for n in (1, 2)
        ]
    else:
        lines += [f"  - tor{s}.5 - tor{s + 1}.6" for s in range(1, count)]
    path = folder / "lab.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def at(switch: int, host: int) -> int:
    """The OCS port of a host's port of a switch."""
    return 4 * switch + host


def all_on(switch: int) -> dict[str, Sequence[str]]:
    """The map that brings all hosts to one switch."""
    return {"ocs1": PortMap.duplex([(n, at(switch, n)) for n in HOSTS]).texts}


def first_map(lab: EmulatedLab) -> dict[str, Sequence[str]]:
    return {ocs: each.texts for ocs, each in lab.lab.initial_maps.items()}


def spec(name: str, iterations: int, **more: int) -> JobSpec:
    return JobSpec(
        name,
        iterations,
        400_000,
        {"T4": 0.05},
        workers=len(HOSTS),
        **more,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module", params=KINDS)
def lab(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmulatedLab]:
    path = lab_of(tmp_path_factory.mktemp("kinds"), KINDS[request.param])
    name = f"kinds-{request.param}"
    with EmulatedLab.from_file(
        path, 1000, name=name, workers="process"
    ) as emulated:
        yield emulated


@pytest.fixture
def client(lab: EmulatedLab) -> Iterator[ControllerClient]:
    with connected(lab) as controller:
        yield controller
        controller.reconfigure(first_map(lab), only=True)


def begun(client: ControllerClient, job: JobSpec) -> str:
    job_id = client.submit([job])[0].id
    wait_until(lambda: client.job(job_id).iterations_done >= 1)
    return job_id


def beyond(client: ControllerClient, job_id: str, then: int) -> bool:
    return client.job(job_id).iterations_done > then + 1


def test_jobs_train_while_their_nics_move(
    lab: EmulatedLab, client: ControllerClient
) -> None:
    job_id = begun(client, spec("moves", 100_000))
    # Also between switches of two kinds. Less than 10 s apart: Open vSwitch still has the paths
    # of earlier announcements cached.
    switches = range(1, 1 + len(lab.lab.packet_switches))
    for maps in (*map(all_on, switches), first_map(lab), all_on(1)):
        before = client.job(job_id).iterations_done
        record = client.reconfigure(maps, only=True)
        assert record.state == "committed", record
        assert not [
            note for note in record.notes if "probed with packets" in note
        ]
        assert "announce" in record.stages_s
        wait_until(partial(beyond, client, job_id, before))
    assert client.job(job_id).restarts == 0
    checked_iterations(client, job_id)


def test_workers_reach_each_other_by_ipv6_wherever_their_nics_move(
    lab: EmulatedLab, client: ControllerClient
) -> None:
    begun(client, spec("ipv6", 100_000))
    (sender,) = namespaces.names_with_prefix(
        f"{namespace_name(lab.lab.name, 'server1')}.w-"
    )
    peers = {
        link_local(h.nic.mac): h.nic.mac
        for h in lab.lab.hosts
        if h.server.name != "server1"
    }

    def reach_all() -> None:
        for address in peers:
            wait_until(
                lambda: ping(sender, f"{address}%nic0"),  # noqa: B023
                f"an answer from {address}",
            )

    for maps in ({}, *map(all_on, range(1, 1 + len(lab.lab.packet_switches)))):
        if maps:
            assert client.reconfigure(maps, only=True).state == "committed"
        reach_all()
        if all(
            switch.driver != "linux-bridge"
            for switch in lab.lab.packet_switches
        ):
            for (
                address
            ) in peers:  # those of other jobs are found by neighbour discovery
                ip("-n", sender, "neigh", "del", address, "dev", "nic0")
            reach_all()
            for address, mac in peers.items():
                ip("-n", sender, "neigh", "replace", address, "lladdr", mac, "dev", "nic0",
                   "nud", "permanent")  # fmt: skip


def lose_port(
    lab: EmulatedLab, switch: PacketSwitch, *, again: bool = False
) -> None:
    """Port 1 of a switch goes, or is there again."""
    if switch.driver == "openflow":
        name = f"{switch.name}-1"
        request = ["--", "set", "Interface", name, "ofport_request=1"]
        ovs(
            lab,
            *(
                ["add-port", switch.name, name, *request]
                if again
                else ["del-port", name]
            ),
        )
    else:
        master = ["master", "br0"] if again else ["nomaster"]
        space = f"pl.{lab.lab.name}.{switch.name}"
        ip("-n", space, "link", "set", switch.interface_names[0], *master)


def missing(client: ControllerClient) -> str:
    return "; ".join(
        words
        for each in client.status().switches
        for words in each.ports_missing
    )


@pytest.mark.parametrize("again_elsewhere", [False, True])
def test_a_port_that_vanishes_is_told_and_its_host_is_not_used(
    lab: EmulatedLab, client: ControllerClient, again_elsewhere: bool
) -> None:
    switch = lab.lab.packet_switches[0]
    if switch.learns:
        pytest.skip("nobody asks a switch that learns, without SNMP")
    assert missing(client) == ""
    job_id = begun(client, spec("pauses", 100_000))
    lose_port(lab, switch)
    try:
        wait_until(lambda: missing(client))
        assert missing(client).startswith("tor1 has no port 1")
        wait_until(lambda: client.job(job_id).state == "paused")
        assert "tor1 has no port 1" in client.job(job_id).message
        (cut,) = client.status().hosts_without_link
        assert (cut.host, "tor1 has no port 1" in cut.reason) == (
            lab.lab.hosts[0].name,
            True,
        )
        assert (
            'patchlight_packet_switch_missing_ports{switch="tor1"} 1'
            in client.metrics()
        )
        if again_elsewhere:
            client.stop(job_id)
            ended(client, job_id)
            (waits,) = client.submit([spec("waits", 3)])
            wait_until(
                lambda: "tor1 has no port 1" in client.job(waits.id).message
            )
            client.stop(waits.id)
            # One that may move circuits uses other ports.
            (moves,) = client.submit([spec("moves", 3)], "regroup")
            assert ended(client, moves.id).state == "done"
            assert "tor1.1" not in str(client.links())
    finally:
        lose_port(lab, switch, again=True)
    wait_until(lambda: not missing(client))
    if not again_elsewhere:
        before = client.job(job_id).iterations_done
        wait_until(partial(beyond, client, job_id, before))
        assert client.job(job_id).restarts == 0
        client.stop(job_id)
        ended(client, job_id)
    kinds = [
        e["kind"] for e in client.events() if e["kind"].startswith("port-")
    ]
    assert kinds[-2:] == ["port-missing", "port-back"]


def test_entries_are_removed_from_switches_with_the_controller(
    lab: EmulatedLab, client: ControllerClient
) -> None:
    def entries() -> dict[str, int]:
        return {
            s.name: _entries(lab, s)
            for s in lab.lab.packet_switches
            if not s.learns
        }

    job_id = begun(client, spec("in-the-way", 100_000))
    assert all(count >= len(HOSTS) for count in entries().values())
    with pytest.raises(
        ControllerError, match=f"nothing was removed: {job_id} would lose"
    ):
        client.shut_down(release=True)
    assert all(count >= len(HOSTS) for count in entries().values())
    client.stop(job_id)
    ended(client, job_id)
    controller = controller_of(lab)
    pid = controller.pid
    client.shut_down(release=True)
    wait_until(lambda: not command_line(pid))
    assert set(entries().values()) <= {0}
    controller.start()
    until_controller_answers(lab)
    wait_until(
        lambda: all(count >= len(HOSTS) for count in entries().values())
    )


def _entries(lab: EmulatedLab, switch: PacketSwitch) -> int:
    """How many entries of Patchlight a switch has."""
    if switch.driver != "openflow":
        return len(static_entries(lab, switch.name))
    command = ["ovs-ofctl", "-O", "OpenFlow13", "dump-flows"]
    done = subprocess.run(
        [*command, f"unix:{lab.run_dir}/ovs/{switch.name}.mgmt"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.count("cookie=0x")


def ovs(lab: EmulatedLab, *command: str) -> str:
    space = namespace_path(fabric_namespace(lab.lab.name))
    return OpenVSwitch(lab.run_dir / "ovs", space).vsctl(command).strip()


def test_without_announcements_a_learning_switch_waits_until_entries_age(
    tmp_path: Path,
) -> None:
    """No job, no announcement: what a NIC that moves silently would lose."""
    path = lab_of(tmp_path, ("learning", "learning"))
    with (
        EmulatedLab.from_file(path, 1000, name="ages", agents=False) as lab,
        connected(lab) as client,
    ):
        age_s = 15  # the least that Open vSwitch takes; 300 by default
        for tor in ("tor1", "tor2"):
            ovs(
                lab,
                "set",
                "Bridge",
                tor,
                f"other_config:mac-aging-time={age_s}",
            )
        sender = namespace_name("ages", "server1")
        host = lab.lab.host("server3.nic0")
        address = str(host.nic.address)
        # As in a worker's namespace: the kernel does not search for it, either.
        ip("-n", sender, "neigh", "replace", address, "lladdr", host.nic.mac, "dev", "nic0",
           "nud", "permanent")  # fmt: skip
        wait_until(lambda: ping(sender, address))
        heard_at = time.monotonic()
        assert client.reconfigure({"ocs1": ["3-11"]}).state == "committed"
        wait_until(lambda: ping(sender, address))
        assert age_s - 3 < time.monotonic() - heard_at < age_s + 15


def test_a_change_waits_until_a_spanning_tree_forwards(tmp_path: Path) -> None:
    path = lab_of(
        tmp_path, ("learning", "learning"), "spanning_tree: true", trunks="ocs"
    )
    with (
        EmulatedLab.from_file(
            path, 1000, name="spans", workers="process"
        ) as lab,
        connected(lab) as client,
    ):

        def states() -> Mapping[str, str]:
            return {
                port: ovs(
                    lab, "get", "Port", port, "rstp_status:rstp_port_state"
                ).strip('"')
                for port in ("tor1-5", "tor2-5", "tor1-6", "tor2-6")
            }

        wait_until(
            lambda: (
                sorted(states().values())
                == ["Discarding", *["Forwarding"] * 3]
            )
        )
        blocked = next(
            port for port, state in states().items() if state == "Discarding"
        )
        job_id = begun(client, spec("spans", 100_000))
        # The trunk that forwards goes; the other one has to take over.
        used = {"5": "41-43", "6": "42-44"}[
            "5" if blocked.endswith("6") else "6"
        ]
        left = [each for each in first_map(lab)["ocs1"] if each != used]
        record = client.reconfigure({"ocs1": left}, only=True)
        assert record.state == "committed", record
        assert states()[blocked] == "Forwarding"
        assert record.stages_s["announce"] > 1
        before = client.job(job_id).iterations_done
        wait_until(partial(beyond, client, job_id, before))
        assert client.job(job_id).restarts == 0
