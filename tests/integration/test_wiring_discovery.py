"""Looking for the wiring of an emulated lab in which two fibres were swapped."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.emulation.lab.emulated_lab import EmulatedLab
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.labfile.reader import read_lab
from tests.support.lab_jobs import PAIR, connected, spread_spec
from tests.support.lab_processes import (
    agent_of,
    controller_of,
    until_agent_answers,
    until_controller_answers,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.ovs]

NAME = "discovered"


@pytest.fixture(scope="module")
def lab() -> Iterator[EmulatedLab]:
    """The lab of the OFC 2022 paper, in which somebody took two NICs' fibres for each other."""
    made = EmulatedLab.from_file(
        "ofc2022",
        1000,
        name=NAME,
        workers="process",
        swapped=(("ocs1.3", "ocs1.5"),),
    )
    with made as up:
        yield up


def _discover(*options: str) -> tuple[int, str]:
    result = CliRunner().invoke(
        cli, ["lab", "discover", NAME, "--yes", *options]
    )
    if isinstance(result.exception, PatchlightError):
        return result.exception.exit_code, str(result.exception)
    return result.exit_code, result.stdout


def test_two_swapped_fibres_are_found_and_the_lab_file_is_put_right(
    lab: EmulatedLab, tmp_path: Path
) -> None:
    before = lab.maps()
    corrected = tmp_path / "corrected.yaml"
    code, printed = _discover(
        "--for", "700ms", "--json", "--output", str(corrected)
    )
    assert code == 1, printed
    wiring = json.loads(printed)["wiring"]
    assert wiring["differences"] == [
        "fibre ocs1.3 goes to server3.nic4, the lab file has server2.nic2",
        "fibre ocs1.5 goes to server2.nic2, the lab file has server3.nic4",
    ]
    assert (wiring["doubts"], wiring["silent"]) == ([], {})
    told = {
        row["port"]: row["verdict"]
        for row in wiring["ports"]
        if row["verdict"] != "free"
    }
    assert told == {
        n: "differs" if n in (3, 5) else "as said" for n in range(1, 19)
    }
    assert lab.maps() == before
    assert not lab.controller.locks()
    assert not lab.controller.status().drained
    right = {
        (str(fibre.a), str(fibre.b)) for fibre in read_lab(corrected).fibres
    }
    assert {("server2.nic2", "ocs1.5"), ("server3.nic4", "ocs1.3")} <= right


def test_beside_a_job_only_free_ports_are_looked_at_and_a_silent_server_is_not_told(
    lab: EmulatedLab,
) -> None:
    before = lab.maps()
    with connected(lab) as client:
        (job,) = client.submit([spread_spec("beside", PAIR, 1000)])
        wait_until(
            lambda: client.job(job.id).iterations_done,
            "the job to train",
        )
        code, said = _discover()
        assert (code, f"the lab is not idle: {job.id}" in said) == (
            1,
            True,
        ), said
        code, said = _discover("--ports", "ocs1.2,ocs1.8")
        assert (
            code,
            f"traffic of {job.id} uses these circuits" in said,
        ) == (1, True), said
        agent = agent_of(lab, "server3")
        agent.end()
        # A server's NIC that a silent agent has, a port of a switch, and one that is not plugged.
        code, said = _discover(
            "--for", "500ms", "--ports", "ocs1.5,ocs1.11-13,ocs1.19", "--json"
        )
        agent.start()
        until_agent_answers(lab, "server3")
        wiring = json.loads(said)["wiring"]
        told = {row["port"]: row["verdict"] for row in wiring["ports"]}
        assert client.job(job.id).state == "running"
    assert code == 1, said
    assert "did not answer" in wiring["silent"]["server3.nic4"]
    assert {port: told[port] for port in (11, 12, 13, 19)} == {
        11: "as said",
        12: "as said",
        13: "as said",
        19: "free",
    }
    assert wiring["differences"] == [
        "fibre ocs1.5 goes to server2.nic2, the lab file has server3.nic4"
    ]
    assert lab.maps() == before


def test_what_a_dead_controller_left_dark_the_next_one_lights_again(
    lab: EmulatedLab,
) -> None:
    before = lab.maps()
    controller = controller_of(lab)
    lab.controller.discover(listen_s=1)
    wait_until(
        lambda: lab.controller.discovery().rounds_done >= 2,
        "a round of light",
    )
    controller.end()
    controller.start()
    until_controller_answers(lab)
    assert lab.maps() == before
    assert lab.controller.locks() == []
    status = lab.controller.status()
    assert not status.drained
    assert not lab.controller.discovery().open


@pytest.mark.snmp
def test_switches_that_nobody_drives_tell_by_snmp_where_16_servers_are(
    tmp_path: Path,
) -> None:
    file = tmp_path / "lab.yaml"
    name = "told-by-snmp"
    hosts = range(1, 17)
    servers = [
        f"{{name: h{n}, nics: [{{name: nic0, address: 10.0.0.{n}}}]}}"
        for n in hosts
    ]
    driven = "driver: learning, telemetry: {snmp: {address: '10.9.9.%d:161'}}"
    switches = [f"{{name: tor{n}, ports: 9, {driven % n}}}" for n in (1, 2)]
    fibres = [f"h{n}.nic0 - ocs1.{n}" for n in hosts]
    fibres += [
        f"tor{1 + n // 9}.{(n - 1) % 8 + 1} - ocs1.{16 + n}" for n in hosts
    ]
    circuits = [f"{n}-{16 + n}" for n in hosts]
    file.write_text(
        f"name: {name}\nnetwork: 10.0.0.0/24\nservers: [{', '.join(servers)}]\n"
        f"packet_switches: [{', '.join(switches)}]\ncircuit_switches: [{{name: ocs1, "
        "driver: calient-tl1, address: '10.9.9.9:3082', ports: 40, "
        f"cross_connects: [{', '.join(circuits)}]}}]\n"
        f"fibres: [{', '.join([*fibres, 'tor1.9 - tor2.9'])}]\n"
    )
    swapped = (("h3.nic0", "h9.nic0"),)
    with EmulatedLab.from_file(
        str(file), 1000, workers="process", swapped=swapped
    ):
        result = CliRunner().invoke(
            cli, ["lab", "discover", name, "--yes", "--json"]
        )
    wiring = json.loads(result.stdout)["wiring"]
    assert (wiring["differences"], wiring["doubts"]) == (
        [
            "fibre ocs1.3 goes to h9.nic0, the lab file has h3.nic0",
            "fibre ocs1.9 goes to h3.nic0, the lab file has h9.nic0",
        ],
        [],
    )
    told = {
        row["port"]: row["verdict"]
        for row in wiring["ports"]
        if row["verdict"] != "free"
    }
    assert told == {
        n: "differs" if n in (3, 9) else "as said" for n in range(1, 33)
    }
