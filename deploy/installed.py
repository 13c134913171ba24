"""What is on the servers of a lab: how it is, going back to the release before, taking it away."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from patchlight.deploy.push import AgentDoesNotAnswer, LabAgents, wait_until_it_answers
from patchlight.deploy.remote import Remote
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Server


class WorkersRun(PatchlightError):
    """A server has workers that would be ended."""


@dataclass(frozen=True, slots=True)
class Installed:
    """What is on a server.

    ``release`` and ``previous`` are ``None`` where there is none; ``version`` is what the agent
    answers, ``since`` when it was started (Unix time), ``restarts`` how often it was started
    again by itself. ``controller`` says whether one runs (``None``: none is to), ``problem`` why it
    is not healthy.
    """

    release: str | None
    previous: str | None = None
    pushed_at: float | None = None
    pushed_by: str = ""
    version: str | None = None
    since: float | None = None
    restarts: int = 0
    workers: int = 0
    controller: bool | None = None
    problem: str = ""


class Servers:
    """The servers of a lab that something is deployed to; safe for several threads.

    ``who`` is named to others who deploy meanwhile.
    """

    def __init__(self, agents: LabAgents, who: str) -> None:
        self._agents, self._who = agents, who

    def status(self, server: Server, remote: Remote) -> Installed:
        """How it is on one server; nothing changes."""
        found = remote.ask("look")
        release, previous = found["release"], found["previous"]
        if release is None:
            return Installed(
                None, problem="nothing is deployed" if not found["here"] else "half there"
            )
        services = found["services"]
        agent = services.get("agent", {"running": False, "since": None, "restarts": 0})
        version, workers, problem = None, 0, ""
        try:
            answer = self._agents.status(server, remote)
            version, workers = answer["version"], _running(answer)
            gpus = [
                f"GPU {gpu['name']}: {gpu['problem']}" for gpu in answer["gpus"] if gpu["problem"]
            ]
            nics = [
                f"NIC {nic['name']}: {nic['problem']}" for nic in answer["nics"] if nic["problem"]
            ]
            problem = "; ".join(gpus + nics)
        except AgentDoesNotAnswer as error:
            problem = error.message if agent["running"] else "its agent does not run"
        controller = services.get("controller")
        if controller is not None and not controller["running"]:
            problem = "; ".join(filter(None, [problem, "its controller does not run"]))
        return Installed(
            release["id"],
            previous and previous["id"],
            release["at"],
            release["by"],
            version,
            agent["since"],
            agent["restarts"],
            workers,
            controller and controller["running"],
            problem,
        )

    def act(self, action: str, server: Server, remote: Remote) -> str:
        """``restart`` or ``stop`` what runs; workers go on. Says what was done."""
        roles = self._begun(remote)
        remote.ask("act", action=action, roles=roles)
        if action == "restart":
            wait_until_it_answers(self._agents, server, remote)
        return " and ".join(roles)

    def roll_back(self, server: Server, remote: Remote) -> str:
        """Go back to the release before, and wait until its agent answers; that release."""
        self._begun(remote)
        release: dict[str, Any] = remote.ask("roll_back")
        wait_until_it_answers(self._agents, server, remote)
        return str(release["id"])

    def remove(self, server: Server, remote: Remote, *, end_workers: bool) -> bool:
        """Leave nothing of the lab on the server; False if there was nothing.

        The agent gives back what its workers have. ``WorkersRun`` if there are some, unless they
        are to be ended.
        """
        found = remote.ask("look")
        if not found["here"]:
            return False
        remote.ask("lock", who=self._who)
        if found["services"].get("agent", {}).get("running") or found["leases"]:
            self._give_back(server, remote, found, end_workers)
        remote.ask("remove")
        return True

    def _give_back(
        self, server: Server, remote: Remote, found: dict[str, Any], end_workers: bool
    ) -> None:
        """Have the agent end its workers; one that does not run is started for that."""
        try:
            answer = self._agents.status(server, remote)
        except AgentDoesNotAnswer:
            if not found["leases"]:
                return  # it has nothing of the server's
            remote.ask("act", action="restart", roles=["agent"])
            answer = wait_until_it_answers(self._agents, server, remote)
        running = _running(answer)
        if running and not end_workers:
            raise WorkersRun(
                f"{running} workers run on {server.name}",
                hint="End their jobs first (patchlight job cancel), or give --end-workers.",
            )
        self._agents.drain(server, remote)

    def _begun(self, remote: Remote) -> Sequence[str]:
        """Be the only one who changes something; the roles that are set up there."""
        remote.ask("lock", who=self._who)
        found = remote.ask("look")
        if found["release"] is None or not found["services"]:
            raise PatchlightError(
                f"nothing is deployed to {remote.server}",
                hint="'patchlight deploy push LAB' does that.",
            )
        return sorted(found["services"].keys() - {"gpus"})  # workers would lose them


def _running(answer: dict[str, Any]) -> int:
    """How many workers an agent has that have not ended."""
    ended = {"done", "failed", "stopped"}
    return sum(worker["state"] not in ended for worker in answer["workers"])
