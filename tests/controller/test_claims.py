"""Claims: what other schedulers request for a job, in line with each other and with users."""

import random
from collections.abc import Collection
from pathlib import Path

import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.cli.ocs.names import node_names
from patchlight.controller.changes.claims import in_line
from patchlight.testbed.errors import BadInput
from tests.support.controller_process import (
    ControllerProcess,
    OcsCommand,
    controller_process,
)
from tests.support.waiting import wait_until


class Line:
    """Claims that want sets of ports, served as often as one comes or goes."""

    def __init__(self) -> None:
        self.waiting: dict[str, Collection[int]] = {}
        self.held: dict[str, Collection[int]] = {}

    def serve(self) -> None:
        owners = {
            port: name for name, ports in self.held.items() for port in ports
        }
        for name, ports in [*self.waiting.items()]:
            if not in_line(ports, owners, name):
                self.held[name] = self.waiting.pop(name)

    def check(self) -> None:
        ports = [port for held in self.held.values() for port in held]
        assert len(ports) == len(set(ports))
        # Whoever waits has a reason: a port that is held, or wanted by an earlier one.
        busy = set(ports)
        for wanted in self.waiting.values():
            assert not busy.isdisjoint(wanted)
            busy.update(wanted)


@pytest.mark.parametrize("seed", range(10))
def test_first_come_first_served_for_the_same_ports(seed: int) -> None:
    draw = random.Random(seed)
    line = Line()
    began: list[str] = []
    wants: dict[str, Collection[int]] = {}
    for number in range(100):
        # A pair of claims comes; some that are held, or wait, go.
        for each in (f"{number}a", f"{number}b"):
            wants[each] = draw.sample(range(40), draw.randint(1, 8))
            line.waiting[each] = wants[each]
        line.serve()
        began += [name for name in line.held if name not in began]
        line.check()
        for names in (line.held, line.waiting):
            for name in [*names]:
                if draw.random() < 0.2:
                    del names[name]
        line.serve()
        began += [name for name in line.held if name not in began]
        line.check()
    while line.held:
        line.held.clear()
        line.serve()
        began += [name for name in line.held if name not in began]
    assert not line.waiting
    # No claim was overtaken by a later one that wanted one of its ports.
    at = {name: turn for turn, name in enumerate(began)}
    order = [name for name in wants if name in at]
    for turn, name in enumerate(order):
        for later in order[turn + 1 :]:
            if not set(wants[name]).isdisjoint(wants[later]):
                assert at[name] < at[later]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("server[1-3],server7", "server1 server2 server3 server7"),
        ("a[08-10,3]-ib,b", "a08-ib a09-ib a10-ib a3-ib b"),
        ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
        ("server1.gpu[0-1]", "server1.gpu0 server1.gpu1"),
    ],
)
def test_lists_of_nodes_as_slurm_writes_them(text: str, names: str) -> None:
    assert node_names(text) == names.split()


@pytest.mark.parametrize(
    "text", ["a[1", "a]", "a[3-1]", "a[x]", "a,,b", "", "a[1-2000]", "a[1-]"]
)
def test_what_is_no_list_of_nodes(text: str) -> None:
    with pytest.raises(BadInput):
        node_names(text)


class OnePortEach(ControllerProcess):
    """A controller of a lab in which one NIC at a time can be connected to each ToR."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        text = self.lab.read_text()
        for fibre in ("[t1.2, o1.4]", "[t2.2, o1.6]"):
            text = text.replace(f"  - {{ends: {fibre}}}\n", "")
        self.lab.write_text(text)


def test_what_cannot_be_brought_together_is_refused_at_once(
    tmp_path: Path,
) -> None:
    with controller_process(tmp_path, OnePortEach) as controller:
        ocs = OcsCommand(["--controller", controller.api])
        said = ocs("claim", "j", "--nodes", "a,b", code=1)
        assert (
            "a.g0, b.g1 cannot be brought together: no packet switch" in said
        )
        assert "no claims" in ocs("claim")
        # A ring of the two is possible: their NICs are joined.
        ring = ("--nodes", "a,b", "--shape", "ring")
        assert "is held" in ocs("claim", "j", *ring)
        links = {(link.a, link.b) for link in controller.client.links()}
        assert ("a.n0", "b.n1") in links


def test_a_claim_over_the_api_and_the_command(
    controller: ControllerProcess,
) -> None:
    ocs = OcsCommand(["--controller", controller.api])
    job = ("claim", "slurm-1", "--nodes", "a,b", "--why", "job 1")
    assert "no claims" in ocs("claim")
    assert "claim slurm-1 is held: a.g0, b.g1" in ocs(*job)
    # The same request is the same claim; another one is refused with what differs.
    assert controller.client.claim("slurm-1", ["b", "a"]).number == 1
    said = ocs(*job[:2], "--nodes", "a", code=1)
    assert "its hosts are ['a.g0', 'b.g1'], not ['a.g0']" in said
    # Nobody else changes its circuits, or unlocks its ports.
    said = ocs("disconnect", "o1", "1", code=1)
    assert "o1.1 is claimed by slurm-1: job 1" in said
    assert "slurm-1" in ocs("lock", "--release", "o1.1", code=1)
    assert "slurm-1" in ocs("connect", "o1", "1:6", "--yes", code=1)
    assert "claim slurm-1" in ocs("history")
    # A second claim of a port waits for the first.
    said = ocs("claim", "slurm-2", "--nodes", "b", "--wait", "0s", code=3)
    assert "claim slurm-2 is waiting: claim slurm-1 has b.g1" in said
    # Another one of free ports does not wait for both.
    assert "is held" in ocs("claim", "slurm-3", "--ports", "o1.6")
    assert "slurm-1 is released" in ocs("claim", "slurm-1", "--release")
    assert "slurm-1 is released" in ocs("claim", "slurm-1", "--release")
    assert controller.client.claim_now("slurm-2", 20.0).state == "held"
    assert "no claim is called x" in ocs("claim", "x", "--release")
    assert "unknown claim x" in ocs("claim", "x", code=2)
    assert "'z'" in ocs("claim", "x", "--nodes", "a,z", code=2)
    metrics = controller.send("GET", "/metrics").text
    assert 'patchlight_claims{state="held"} 2.0' in metrics
    shown = CliRunner().invoke(cli, ["status", "--controller", controller.api])
    assert "held: slurm-2, slurm-3" in shown.stdout
    # With --force its circuits change, and it is told.
    ocs("connect", "o1", "2:5", "--yes", "--force")
    wait_until(
        lambda: "o1 2>" in controller.client.claim_now("slurm-2").words,
        "the claim to be told",
    )
    assert "changed by others" in ocs("claim")
