"""Other schedulers: the topology as it is lit now, and nodes that are to be brought together."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from patchlight.cli.main import cli
from patchlight.controller.api.openapi import explained
from patchlight.controller.changes.record import Refused
from patchlight.controller.changes.wanted import bringing_together
from patchlight.controller.policies.topology import CannotRegroup
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Endpoint
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links
from tests.support.change_bench import (
    LAB,
    START,
    ChangeBench,
    CircuitsOf,
    Network,
)
from tests.support.controller_process import (
    ControllerProcess,
    OcsCommand,
    controller_process,
)
from tests.support.waiting import PATIENCE_S, closed_port, wait_until


class Riding(Network):
    """A job that rides on the NICs of these hosts."""

    def __init__(self, *hosts: str) -> None:
        super().__init__()
        self.nics = {LAB.host(name).endpoint for name in hosts}

    def jobs_using(self, moved: frozenset[Endpoint]) -> list[str]:
        return ["busy-1"] if self.nics & moved else []


def circuits(bench: ChangeBench, *busy: str) -> CircuitsOf:
    return CircuitsOf(LAB, bench.drivers, bench.store, Riding(*busy))


def switch_of(ports: PortMap, *hosts: str) -> set[str | None]:
    links = trace_links(LAB, {"ocs1": ports})
    return {links.switch_of(LAB, LAB.host(host).endpoint) for host in hosts}


async def test_nodes_come_under_one_switch(bench: ChangeBench) -> None:
    free = circuits(bench)
    decide = await bringing_together(
        free.parts, ["server2", "server3"], force=False
    )
    record = await free.change(decide, "test")
    assert record.state == "committed"
    after = await bench.driver.read_map()
    assert switch_of(after, "gpu2", "gpu3", "gpu4") == {"tor2"}
    # The fewest moves: only server3's NIC.
    assert switch_of(after, "gpu0", "gpu1") == {"tor1"}
    assert len(record.changes["ocs1"]["makes"]) == 2


async def test_running_jobs_keep_their_light_unless_forced(
    bench: ChangeBench,
) -> None:
    busy = circuits(bench, "gpu0", "gpu2")
    decide = await bringing_together(
        busy.parts, ["server1", "server2"], force=False
    )
    with pytest.raises(
        Refused,
        match="connected to one switch without moving circuits of busy-1",
    ) as refused:
        await busy.change(decide, "test")
    assert "--force" in str(refused.value.hint)
    assert await bench.driver.read_map() == START
    # What needs no circuit of the job's can be had.
    decide = await bringing_together(busy.parts, ["gpu1", "gpu3"], force=False)
    assert (await busy.change(decide, "test")).state == "committed"
    present = await bench.driver.read_map()
    assert switch_of(present, "gpu0") == {"tor1"}
    assert switch_of(present, "gpu2") == {"tor2"}
    decide = await bringing_together(
        busy.parts, ["server1", "server2"], force=True
    )
    assert (await busy.change(decide, "test")).state == "committed"
    assert (
        len(
            switch_of(
                await bench.driver.read_map(), "gpu0", "gpu1", "gpu2", "gpu3"
            )
        )
        == 1
    )


async def test_what_cannot_be_brought_together(bench: ChangeBench) -> None:
    parts = circuits(bench).parts
    for nodes, words in (
        (["server9"], "no host called 'server9'"),
        ([], "name the nodes"),
    ):
        with pytest.raises(BadInput, match=words):
            await bringing_together(parts, nodes, force=False)
    parts.locks.lock("ocs1", [1, 3], "locked", "somebody", "")
    decide = await bringing_together(parts, ["server1", "server2"], force=True)
    with pytest.raises(CannotRegroup) as refused:
        decide({"ocs1": START})
    assert explained(refused.value).status_code == 409


def test_over_the_api_and_the_command(controller: ControllerProcess) -> None:
    client = controller.client
    ocs = OcsCommand(["--controller", controller.api])
    assert [node.switch for node in client.topology().nodes] == [
        "t1",
        "t2",
    ]
    assert "link up: b.n1:t1.2" in ocs("colocate", "a", "b", "--dry-run")
    assert [node.switch for node in client.topology().nodes] == [
        "t1",
        "t2",
    ]
    assert "committed" in ocs("colocate", "a", "b")
    assert [node.switch for node in client.topology().nodes] == [
        "t1",
        "t1",
    ]
    assert "SwitchName=t1 Nodes=a,b\n" in client.topology_file("slurm-conf")
    assert "connects a, b to one switch" in ocs("history")
    assert "nothing to change" in ocs("colocate", "a", "b", "--dry-run")
    with pytest.raises(BadInput, match="format"):
        client.topology_file("toml")
    assert "no host called" in ocs("colocate", "c", code=2)


def topology_command(controller: ControllerProcess, file: Path) -> list[str]:
    words = [
        "lab",
        "show",
        "--controller",
        controller.api,
        "--format",
        "slurm",
    ]
    return [*words, "--output", str(file)]


def test_a_file_is_replaced_only_where_the_topology_differs(
    tmp_path: Path,
) -> None:
    file = tmp_path / "topology.yaml"
    (tmp_path / "link").symlink_to(file)

    def run(*words: str) -> Result:
        command = topology_command(controller, tmp_path / "link")
        return CliRunner().invoke(
            cli, [*command, *words], catch_exceptions=False
        )

    with controller_process(tmp_path) as controller:
        assert run().stdout == f"wrote {tmp_path / 'link'}\n"
        first = file.stat()
        text = file.read_bytes()
        assert (run().stdout, file.stat()) == ("", first)
        file.chmod(0o640)
        ocs = OcsCommand(["--controller", controller.api])
        ocs("colocate", "a", "b")
        assert "wrote" in run().stdout
        assert (tmp_path / "link").is_symlink()
        assert (file.stat().st_mode & 0o777, b"a,b" in file.read_bytes()) == (
            0o640,
            True,
        )
        ocs("rollback", "1")
        assert "wrote" in run().stdout
        assert file.read_bytes() == text
        assert [path.name for path in tmp_path.glob(".topology*")] == []


def test_a_file_follows_the_light(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    with controller_process(tmp_path) as controller:
        ocs = OcsCommand(["--controller", controller.api])
        command = [
            sys.executable,
            "-m",
            "patchlight",
            *topology_command(controller, file),
        ]
        with subprocess.Popen(
            [*command, "--follow"], stdout=subprocess.PIPE, text=True
        ) as follower:
            try:
                wait_until(file.exists, "the topology to be written")
                ocs("connect", "o1", "13-14")  # no node is lit otherwise
                ocs("colocate", "a", "b")
                wait_until(
                    lambda: "a,b" in file.read_text(), "the topology to follow"
                )
                # A line follows each write at once.
                assert follower.stdout is not None
                said = [follower.stdout.readline() for _ in range(2)]
            finally:
                follower.send_signal(signal.SIGINT)
            assert (said, follower.communicate(timeout=PATIENCE_S)[0]) == (
                [f"wrote {file}\n"] * 2,
                "",
            )


def test_a_file_is_left_as_it_is_while_a_switch_does_not_answer(
    tmp_path: Path,
) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text("as it was")
    controller = ControllerProcess(tmp_path)
    # A device is locked by its address, which no other test has.
    with closed_port() as port:
        text = controller.lab.read_text().replace("dry-run", "polatis-scpi")
        controller.lab.write_text(
            text.replace('127.0.0.1:1"', f'127.0.0.1:{port}"')
        )
        controller.start()
        try:
            result = CliRunner().invoke(
                cli, topology_command(controller, file)
            )
        finally:
            controller.stop()
    assert isinstance(result.exception, PatchlightError)
    assert str(result.exception).startswith(
        f"{file} is unchanged: o1 did not answer"
    )
    assert file.read_text() == "as it was"
