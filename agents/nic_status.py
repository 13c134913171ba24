"""What an agent tells of each NIC of its server."""

from pathlib import Path

from patchlight.agents.errors import NicError
from patchlight.agents.nics import watch
from patchlight.agents.nics.moving import find_way
from patchlight.agents.worker_life import Worker
from patchlight.testbed.lab.model import Nic
from patchlight.testbed.linux import namespaces
from patchlight.testbed.wire.agent_status import NicStatus


def nic_status(nic: Nic, home: Path, holder: Worker | None) -> NicStatus:
    """How a NIC is: at home, or with the worker that has it. Blocks."""
    told = NicStatus(
        name=nic.name,
        address=str(nic.address),
        state="idle" if holder is None else "leased",
        worker=None if holder is None else holder.spec.id,
        mac=None if nic.keeps_mac else nic.mac,
    )
    return _at_home(told, nic, home) if holder is None else _with_worker(told, nic, home, holder)


def _at_home(told: NicStatus, nic: Nic, home: Path) -> NicStatus:
    try:
        way = namespaces.inside(home, lambda: find_way(nic))
    except NicError as exc:
        return told.model_copy(update={"problem": exc.message})
    port = way.function.port if way.function else way.interface
    facts = watch.facts_of(home, way.interface, (home, port))
    if nic.mtu is not None:
        facts["mtu"] = nic.mtu
    return _told(told, nic, {**facts, "mode": way.mode}, watch.problem_of(home, way.interface))


def _with_worker(told: NicStatus, nic: Nic, home: Path, holder: Worker) -> NicStatus:
    place, problem = holder.tenancy.place, holder.nic_problem
    if place is None:
        return told
    state = place.state
    port = (home, state.function.port) if state.function else (place.namespace, state.interface)
    if state.mode == "macvlan":
        port = home, state.interface
    facts = watch.facts_of(place.namespace, state.interface, port)
    facts |= {"mode": state.mode, "rdma": holder.tenancy.rdma}
    if nic.keeps_mac:
        facts["mac"] = state.mac
    return _told(told, nic, facts, problem)


def _told(
    told: NicStatus, nic: Nic, facts: dict[str, object], problem: watch.NicProblem | None
) -> NicStatus:
    if not nic.keeps_mac:
        facts.pop("mac", None)
    if problem is not None:
        facts |= {"problem": problem.words, "carrier": not problem.is_dark}
    return told.model_copy(update=facts)
