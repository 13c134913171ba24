"""An agent whose GPU is NVML's, over a library with NVML's interface: energy, and a GPU that falls
off under its worker."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import nvml
from tests.support.agent_bench import Bench
from tests.support.waiting import wait_until
from tests.support.worker_jobs import everything_is_back

pytestmark = pytest.mark.root


def test_a_worker_has_used_energy_and_loses_its_gpu(
    make_bench: Callable[[int], Bench],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    try:
        library = nvml.build(tmp_path)
    except FileNotFoundError as exc:
        pytest.skip(str(exc))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    bench = make_bench(1)
    with nvml.driver(tmp_path, 1) as driver:
        agent = bench.agent("server1")
        agent.gpus = "nvml"
        agent.start()
        program = bench.command(
            0, 1, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exec sleep 600"
        )
        assert agent.client.post("/workers", json=program).status_code == 201
        agent.until_state("job-0", "ready")
        agent.client.post("/workers/job-0/start")
        wait_until(
            lambda: agent.client.get("/workers/job-0/log").json()["text"],
            "its first line",
        )
        (card,) = driver.cards[:1]
        card.energy_mj += 5_000
        wait_until(
            lambda: agent.worker("job-0")["energy_j"] == 5.0,
            "what it has used",
        )
        card.energy_mj += 1_000
        wait_until(
            lambda: agent.worker("job-0")["energy_j"] == 6.0,
            "what it has used since",
        )
        card.error = nvml.LOST
        ended = agent.until_state("job-0", "failed")
        assert (
            "its GPU failed: the driver reports: GPU is lost"
            in ended["message"]
        )
        assert (ended["energy_j"], ended["last_lines"][0]) == (6.0, "GPU-0")
        (gpu,) = agent.client.get("/status").json()["gpus"]
        assert (gpu["utilization"], gpu["problem"]) == (
            None,
            "the driver reports: GPU is lost",
        )
        assert everything_is_back(agent, "job-0")
