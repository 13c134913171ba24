"""A small lab for agents: servers with one NIC each on a bridge, in namespaces of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import httpx
import pytest

from patchlight.testbed.lab.model import Gpu, Lab, Nic, Server, default_mac
from patchlight.testbed.lab.rules import WorkerPolicy
from patchlight.testbed.labfile.writer import write_lab
from patchlight.testbed.linux import namespaces
from tests.support.forked import ForkedProgram
from tests.support.waiting import PATIENCE_S, unix_socket_answers, wait_until

ROOT = Path(__file__).parents[2]
NETWORK = "10.77.0"


def ip(*arguments: str) -> str:
    """Run ``ip``; its output."""
    return subprocess.run(
        ["ip", *arguments], check=True, capture_output=True, text=True
    ).stdout


class Agent:
    """One agent process in its server's namespace, and a client of it."""

    def __init__(self, bench: Bench, server: str, workers: str) -> None:
        self.bench = bench
        self.server = server
        self.workers = workers
        self.gpus = f"socket:{bench.directory / 'gpus'}"
        self.socket = bench.directory / f"{server}.sock"
        self.log = bench.directory / f"{server}.log"
        self.process: ForkedProgram | subprocess.Popen[bytes] | None = None
        self.client = httpx.Client(
            transport=httpx.HTTPTransport(verify=False, uds=str(self.socket)),
            base_url="http://agent/v1",
            timeout=PATIENCE_S,
        )

    def start(self) -> Agent:
        """Start it, and wait until it answers."""
        self.launch()
        return self.until_it_answers()

    def launch(self) -> None:
        """Start it."""
        words = ["--lab", str(self.bench.lab_file), "--server", self.server]
        words += [
            "--listen",
            f"unix:{self.socket}",
            "--worker-kind",
            self.workers,
        ]
        words += ["--gpu-source", self.gpus]
        words += [
            "--state",
            str(self.bench.directory / f"state-{self.server}"),
        ]
        namespace = namespaces.namespace_path(
            self.bench.namespace(self.server)
        )
        if "LD_LIBRARY_PATH" not in os.environ:
            program = "patchlight.agents.__main__:main"
            self.process = ForkedProgram(program, words, self.log, namespace)
            return
        # Where libraries are looked for is settled as a program begins.
        command = [
            "nsenter",
            f"--net={namespace}",
            "--",
            sys.executable,
            "-m",
            "patchlight.agents",
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *words], cwd=ROOT, stdout=log, stderr=log
            )

    def until_it_answers(self) -> Agent:
        """Wait until it answers, and the GPUs do that started beside it."""
        self.bench.until_gpus_are_there()
        wait_until(
            self._answers,
            f"the agent of {self.server} ({self.log.read_text()})",
        )
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            pytest.fail(f"the agent ended: {self.log.read_text()}")
        with contextlib.suppress(httpx.TransportError):
            return self.client.get("/status").status_code == 200
        return False

    def stop(self) -> None:
        """As an operator or an upgrade does."""
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(PATIENCE_S) == 0, self.log.read_text()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def worker(self, name: str) -> dict[str, Any]:
        answer = self.client.get(f"/workers/{name}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def nic_is_home(self) -> bool:
        links = ip("-n", self.bench.namespace(self.server), "-o", "link")
        return "nic0" in links

    def until_state(self, name: str, *states: str) -> dict[str, Any]:
        def reached() -> dict[str, Any]:
            status = self.worker(name)
            if (
                status["state"] in ("failed", "stopped")
                and status["state"] not in states
            ):
                pytest.fail(f"{self.server}: {status}")
            return status if status["state"] in states else {}

        return wait_until(reached, f"{name} to be {states}")


class Bench:
    """The lab, its namespaces, its emulated GPUs and its agents."""

    def __init__(self, directory: Path, servers: int) -> None:
        self.directory = directory
        self.name = f"test-{os.getpid()}"
        self.lab = Lab(
            name=self.name,
            network=IPv4Network(f"{NETWORK}.0/24"),
            servers=tuple(self._server(n) for n in range(1, servers + 1)),
        )
        self.lab_file = directory / "lab.yaml"
        self.lab_file.write_text(write_lab(self.lab))
        self.agents: list[Agent] = []
        self.gpus: ForkedProgram | None = None
        self._had_gpus = False

    def allow(self, *mounts: str) -> None:
        """Have the lab file name these under ``mounts`` of ``workers``, for agents to start."""
        self.lab = self.lab.with_changes(workers=WorkerPolicy(mounts=mounts))
        self.lab_file.write_text(write_lab(self.lab))

    def _server(self, number: int) -> Server:
        return Server(
            name=f"server{number}",
            management=None,
            gpus=(Gpu("gpu0", "Tesla M40"),),
            nics=(
                Nic(
                    "nic0",
                    IPv4Address(f"{NETWORK}.{10 + number}"),
                    mac=f"02:4c:00:00:00:{number:02x}",
                    gpu="gpu0",
                ),
            ),
        )

    def namespace(self, device: str) -> str:
        return f"pl.{self.name}.{device}"

    def build(self) -> None:
        fabric = self.namespace("fabric")
        ip("netns", "add", fabric)
        ip("-n", fabric, "link", "add", "br0", "type", "bridge")
        ip("-n", fabric, "addr", "add", f"{NETWORK}.1/24", "dev", "br0")
        ip("-n", fabric, "link", "set", "br0", "up")
        for server in self.lab.servers:
            space = self.namespace(server.name)
            port = f"{server.name}-1"
            ip("netns", "add", space)
            veth = f"link add nic0 type veth peer name {port} netns {fabric}"
            ip("-n", space, *veth.split())
            ip("-n", fabric, "link", "set", port, "master", "br0", "up")
            ip("-n", space, "link", "set", "nic0", "up")
            shaping = "tc qdisc add dev nic0 root tbf rate 40mbit burst 16k latency 50ms"
            ip("netns", "exec", space, *shaping.split())
        # Not the agents' lab file: that may change while the GPUs start.
        lab_file = self.directory / "gpus.yaml"
        log = self.directory / "gpus.log"
        lab_file.write_text(write_lab(self.lab))
        words = ["--lab", str(lab_file), "--dir", str(self.directory / "gpus")]
        self.gpus = ForkedProgram(
            "patchlight.emulation.lab.gpus:main", words, log
        )

    def until_gpus_are_there(self) -> None:
        """Wait for them, once: a test may take one away."""
        if not self._had_gpus:
            wait_until(self._gpus_answer, "the emulated GPUs")
        self._had_gpus = True

    def _gpus_answer(self) -> bool:
        assert self.gpus is not None
        assert self.gpus.poll() is None, (
            self.directory / "gpus.log"
        ).read_text()
        return all(
            unix_socket_answers(self.gpu_socket(each.name))
            for each in self.lab.servers
        )

    def gpu_socket(self, server: str) -> Path:
        """The socket of a server's GPU."""
        return self.directory / "gpus" / f"{server}.gpu0.sock"

    def agent(self, server: str, workers: str = "process") -> Agent:
        agent = Agent(self, server, workers)
        self.agents.append(agent)
        return agent

    def start_agents(
        self, count: int, workers: str = "process"
    ) -> list[Agent]:
        """An agent on each of the first so many servers; they start side by side."""
        agents = [
            self.agent(f"server{number}", workers)
            for number in range(1, count + 1)
        ]
        for agent in agents:
            agent.launch()
        return [agent.until_it_answers() for agent in agents]

    def command(
        self, rank: int, ranks: int, *command: str, **task: Any
    ) -> dict[str, Any]:
        """The same for a worker that runs somebody's own program."""
        task = {"trainer": "command", "command": list(command), **task}
        return {**self.spec(rank, ranks), "task": task}

    def spec(self, rank: int, ranks: int, **task: Any) -> dict[str, Any]:
        """What to post for one worker of a job over the first ``ranks`` servers."""
        return {
            "id": f"job-{rank}",
            "job": "job",
            "rank": rank,
            "gpu": "gpu0",
            "nic": "nic0",
            "ring": [
                {"rank": r, "address": f"{NETWORK}.{11 + r}", "port": 29500}
                for r in range(ranks)
            ],
            "neighbours": [
                {
                    "address": f"{NETWORK}.{11 + r}",
                    "mac": f"02:4c:00:00:00:{1 + r:02x}",
                }
                for r in range(ranks)
                if r != rank
            ],
            "task": {
                "iterations": 5,
                "gradient_bytes": 200_003,
                "compute_s": 0.05,
                "seed": 7,
                **task,
            },
        }

    def reaches(self, number: int) -> bool:
        """Whether the fabric reaches the address of a server's NIC."""
        ping = ["ping", "-c", "1", "-W", "0.3", f"{NETWORK}.{10 + number}"]
        command = ["ip", "netns", "exec", self.namespace("fabric"), *ping]
        return (
            subprocess.run(
                command, capture_output=True, check=False
            ).returncode
            == 0
        )

    def clear(self) -> None:
        try:
            self._end_programs()
        finally:  # those that did not end when told to, and those that were not told any more
            for process in (
                *(agent.process for agent in self.agents),
                self.gpus,
            ):
                if process is not None and process.poll() is None:
                    process.kill()
                    process.wait(PATIENCE_S)
            self._remove_namespaces()

    def _end_programs(self) -> None:
        for agent in self.agents:
            if agent.process is not None and agent.process.poll() is None:
                agent.client.post("/drain")
                agent.process.terminate()
        for agent in self.agents:
            if agent.process is not None:
                agent.process.wait(PATIENCE_S)
            agent.client.close()
        if self.gpus is not None:
            self.gpus.terminate()
            self.gpus.wait(PATIENCE_S)

    def _remove_namespaces(self) -> None:
        left = [
            path.name for path in Path("/run/netns").glob(f"pl.{self.name}.*")
        ]
        for name in left:
            namespaces.end_all(name)
            ip("netns", "del", name)
        kept = {
            self.namespace(d)
            for d in ("fabric", *(s.name for s in self.lab.servers))
        }
        assert set(left) <= kept, (
            f"workers' namespaces were left behind: {set(left) - kept}"
        )


def with_nics(bench: Bench, **keys: Any) -> Lab:
    """Have the bench's lab file say these things of every NIC."""

    def changed(nic: Nic) -> Nic:
        return replace(nic, **{"mac": default_mac(nic.address), **keys})

    servers = (
        replace(
            server,
            nics=tuple(map(changed, server.nics)),
            management=f"unix:{socket}",
        )
        for server in bench.lab.servers
        for socket in [bench.directory / f"{server.name}.sock"]
    )
    lab = bench.lab.with_changes(servers=tuple(servers))
    bench.lab_file.write_text(write_lab(lab))
    return lab
