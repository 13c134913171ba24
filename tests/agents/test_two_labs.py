"""Two labs that share a server: each has an agent there, and leaves alone what is the other's."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from patchlight.testbed.labfile.writer import write_lab
from tests.support.agent_bench import Agent, Bench, ip
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.root


class SharingLab(Bench):
    """Another lab, whose only server is the machine that is the first lab's ``server1``.

    It has a NIC of its own there, ``nic1``, and lists the first lab's ``nic0`` as well.
    """

    def __init__(self, directory: Path, first: Bench) -> None:
        super().__init__(directory, 1)
        self.first = first
        self.name = f"{first.name}b"
        (server,) = self.lab.servers
        (shared,) = server.nics
        own = replace(
            shared,
            name="nic1",
            address=shared.address + 50,
            mac="02:4c:00:00:00:99",
        )
        server = replace(server, nics=(own, replace(shared, gpu=None)))
        self.lab = self.lab.with_changes(name=self.name, servers=(server,))
        self.lab_file.write_text(write_lab(self.lab))
        self.build()

    def namespace(self, device: str) -> str:
        return self.first.namespace(device)

    def build(self) -> None:
        space = self.namespace("server1")
        ip(
            "-n",
            space,
            "link",
            "add",
            "nic1",
            "type",
            "veth",
            "peer",
            "name",
            "nic1-far",
        )
        for interface in ("nic1", "nic1-far"):
            ip("-n", space, "link", "set", interface, "up")

    def until_gpus_are_there(self) -> None:
        """It has none that anybody asks for."""

    def own_spec(
        self, nic: str = "nic1", gpu: str | None = None
    ) -> dict[str, object]:
        spec = self.spec(0, 1, iterations=100_000)
        address = next(
            n.address for n in self.lab.servers[0].nics if n.name == nic
        )
        ring = [{"rank": 0, "address": str(address), "port": 29500}]
        return {**spec, "gpu": gpu, "nic": nic, "ring": ring}

    def clear(self) -> None:
        for agent in self.agents:
            if agent.process is not None and agent.process.poll() is None:
                agent.client.post("/drain")
                agent.stop()
            agent.client.close()


@pytest.fixture
def labs(
    make_bench: Callable[[int], Bench], tmp_path: Path
) -> Iterator[tuple[Bench, SharingLab]]:
    first = make_bench(1)
    folder = first.directory / "second"
    folder.mkdir()
    second = SharingLab(folder, first)
    try:
        yield first, second
    finally:
        second.clear()


def _begun(agent: Agent, spec: dict[str, object]) -> None:
    answer = agent.client.post("/workers", json=spec)
    assert answer.status_code == 201, answer.text
    agent.until_state("job-0", "ready")
    assert agent.client.post("/workers/job-0/start").status_code == 200
    agent.until_state("job-0", "running")


def _interfaces(space: str) -> set[str]:
    words = (
        line.split(": ")[1]
        for line in ip("-n", space, "-o", "link").splitlines()
    )
    return {word.partition("@")[0] for word in words}


def test_two_labs_on_one_server_do_not_meet(
    labs: tuple[Bench, SharingLab],
) -> None:
    first, second = labs
    ours = first.agent("server1").start()
    theirs = second.agent("server1")
    theirs.gpus = ours.gpus  # the server's GPU is in both lab files
    theirs.start()
    _begun(ours, first.spec(0, 1, iterations=100_000))
    # The same worker's name in both, and one asks for a NIC and a GPU that the other's worker has.
    asked = {
        "NIC nic0": second.own_spec("nic0"),
        "GPU gpu0": second.own_spec("nic1", "gpu0"),
    }
    by_whom = f"is leased to worker job-0 of lab {first.name}, which shares this server"
    for has, spec in asked.items():
        taken = theirs.client.post("/workers", json={**spec, "id": "job-1"})
        assert (taken.status_code, taken.json()["error"]) == (
            409,
            f"{has} {by_whom}",
        )
    ours.kill()  # its worker goes on, and has what it has
    taken = theirs.client.post(
        "/workers", json={**asked["GPU gpu0"], "id": "job-1"}
    )
    assert (taken.status_code, taken.json()["error"]) == (
        409,
        f"GPU gpu0 {by_whom}",
    )
    ours.start()
    _begun(theirs, second.own_spec())
    spaces = [f"pl.{lab.name}.server1.w-job-0" for lab in (first, second)]
    assert [_interfaces(space) for space in spaces] == [
        {"lo", "nic0"},
        {"lo", "nic1"},
    ]
    # One that comes back takes over its own worker, and leaves the other's alone.
    theirs.kill()
    theirs.start()
    assert theirs.worker("job-0")["state"] == "running"
    assert ours.worker("job-0")["state"] == "running"
    assert ours.client.delete("/workers/job-0").status_code == 200
    assert {"nic0", "nic1-far"} <= _interfaces(first.namespace("server1"))
    assert theirs.worker("job-0")["state"] == "running"
    # What was taken is free now.
    assert theirs.client.delete("/workers/job-0").status_code == 200
    _begun(theirs, second.own_spec("nic0", "gpu0"))


def test_an_agent_refuses_the_state_of_another_labs(
    labs: tuple[Bench, SharingLab],
) -> None:
    first, second = labs
    ours = first.agent("server1").start()
    _begun(ours, first.spec(0, 1, iterations=100_000))
    ours.kill()
    state = second.directory / "state-server1"
    state.mkdir(mode=0o700)
    shutil.copytree(
        first.directory / "state-server1" / "leases", state / "leases"
    )
    theirs = second.agent("server1")
    theirs.launch()
    assert theirs.process is not None
    assert theirs.process.wait(PATIENCE_S) == 1
    assert (
        f"it is in pl.{first.name}.server1.w-job-0" in theirs.log.read_text()
    )
    ours.start()
    assert ours.worker("job-0")["state"] == "running"
