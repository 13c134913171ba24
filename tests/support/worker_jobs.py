"""Jobs of workers on a bench of agents: brought up, started, seen to their end."""

from patchlight.testbed.linux.processes import command_line
from tests.support.agent_bench import Agent, Bench, ip


def run_job(
    bench: Bench, runner: str, ranks: int, **task: object
) -> list[Agent]:
    """Start agents and a job over them, up to where all workers are ready."""
    agents = bench.start_agents(ranks, runner)
    for rank, agent in enumerate(agents):
        answer = agent.client.post(
            "/workers", json=bench.spec(rank, ranks, **task)
        )
        assert answer.status_code == 201, answer.text
    for rank, agent in enumerate(agents):
        agent.until_state(f"job-{rank}", "ready")
    return agents


def start_all(agents: list[Agent]) -> None:
    """Have every worker of the job train."""
    for rank, agent in enumerate(agents):
        assert (
            agent.client.post(f"/workers/job-{rank}/start").status_code == 200
        )


def until_done(agents: list[Agent]) -> None:
    """Wait for the end of every worker of the job."""
    for rank, agent in enumerate(agents):
        agent.until_state(f"job-{rank}", "done")


def processes_of(bench: Bench, worker: str) -> list[int]:
    """What runs in a worker's namespace, container or not, besides its keeper."""
    server = f"server{int(worker[-1]) + 1}"
    pids = map(
        int,
        ip("netns", "pids", bench.namespace(f"{server}.w-{worker}")).split(),
    )
    return [
        pid for pid in pids if "patchlight-keeper" not in command_line(pid)
    ]


def training_pid(bench: Bench, worker: str) -> int:
    """The program of a worker."""
    (pid,) = processes_of(bench, worker)
    return pid


def everything_is_back(agent: Agent, worker: str) -> bool:
    """Whether the server has its NIC and GPU again, and nothing is left of the worker's space."""
    overview = agent.client.get("/status").json()
    leased = [
        each
        for each in (*overview["nics"], *overview["gpus"])
        if each["worker"]
    ]
    space = agent.bench.namespace(f"{agent.server}.w-{worker}")
    return (
        not leased and agent.nic_is_home() and space not in ip("netns", "list")
    )
