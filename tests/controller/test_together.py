"""Other schedulers: the topology as it is lit now, and nodes that are to be brought together."""

import pytest

from patchlight.controller.changes.record import Refused
from patchlight.controller.policies.topology import CannotRegroup
from patchlight.controller.together import bringing_together
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab import Endpoint
from patchlight.testbed.portmap import PortMap
from patchlight.testbed.wiring import trace_links
from tests.support.change_bench import LAB, START, ChangeBench, CircuitsOf, Network
from tests.support.controller_process import ControllerProcess, OcsCommand


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
    decide = await bringing_together(free.parts, ["server2", "server3"], force=False)
    record = await free.change(decide, "test")
    assert record.state == "committed"
    after = await bench.driver.read_map()
    assert switch_of(after, "gpu2", "gpu3", "gpu4") == {"tor2"}
    # The fewest moves: only server3's NIC.
    assert switch_of(after, "gpu0", "gpu1") == {"tor1"}
    assert len(record.changes["ocs1"]["makes"]) == 2


async def test_running_jobs_keep_their_light_unless_forced(bench: ChangeBench) -> None:
    busy = circuits(bench, "gpu0", "gpu2")
    decide = await bringing_together(busy.parts, ["server1", "server2"], force=False)
    with pytest.raises(Refused, match="while the circuits of busy-1 stay") as refused:
        await busy.change(decide, "test")
    assert "--force" in str(refused.value.hint)
    assert await bench.driver.read_map() == START
    # What needs no circuit of the job's can be had.
    decide = await bringing_together(busy.parts, ["gpu1", "gpu3"], force=False)
    assert (await busy.change(decide, "test")).state == "committed"
    present = await bench.driver.read_map()
    assert switch_of(present, "gpu0") == {"tor1"}
    assert switch_of(present, "gpu2") == {"tor2"}
    decide = await bringing_together(busy.parts, ["server1", "server2"], force=True)
    assert (await busy.change(decide, "test")).state == "committed"
    assert len(switch_of(await bench.driver.read_map(), "gpu0", "gpu1", "gpu2", "gpu3")) == 1


async def test_what_cannot_be_brought_together(bench: ChangeBench) -> None:
    parts = circuits(bench).parts
    for nodes, words in ((["server9"], "no host called 'server9'"), ([], "name the nodes")):
        with pytest.raises(BadInput, match=words):
            await bringing_together(parts, nodes, force=False)
    parts.locks.lock("ocs1", [1, 3], "locked", "somebody", "")
    decide = await bringing_together(parts, ["server1", "server2"], force=True)
    with pytest.raises(CannotRegroup):
        decide({"ocs1": START})


def test_over_the_api_and_the_command(controller: ControllerProcess) -> None:
    client, ocs = controller.client, OcsCommand(["--controller", controller.api])
    assert [node["switch"] for node in client.topology()["nodes"]] == ["t1", "t2"]
    assert "link comes: b.n1:t1.2" in ocs("together", "a", "b", "--dry-run")
    assert [node["switch"] for node in client.topology()["nodes"]] == ["t1", "t2"]
    assert "committed" in ocs("together", "a", "b")
    assert [node["switch"] for node in client.topology()["nodes"]] == ["t1", "t1"]
    assert "SwitchName=t1 Nodes=a,b\n" in client.topology_file("slurm-conf")
    assert "brings together a, b" in ocs("history")
    assert "nothing to change" in ocs("together", "a", "b", "--dry-run")
    with pytest.raises(BadInput, match="format"):
        client.topology_file("toml")
    assert "no host called" in ocs("together", "c", code=2)
