"""Which agents answer, by when they last did, and what they say is wrong with their hosts. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.lab.wiring import Links
from patchlight.testbed.wire.agent_status import AgentStatus

INTERVAL_S = 3.0
"""The heart of an agent should beat once in so long. It is looked at every second."""

SUSPECTED_AFTER = 3
"""Silent for so many intervals, nothing new is begun with it."""

LOST_AFTER = 10
"""Silent for so many, what it had is taken for lost."""


class Presence(StrEnum):
    """What is to be made of an agent's silence, if it is silent."""

    UNHEARD = "not heard of yet"
    ANSWERS = "answers"
    SUSPECTED = "suspected"
    LOST = "lost"

    @property
    def is_silent(self) -> bool:
        """Whether nothing new is to be begun with it."""
        return self in (Presence.SUSPECTED, Presence.LOST)


@dataclass(slots=True)
class Heartbeat:
    """Since when somebody who was asked has not answered; ``None``: they did the last time.

    Times are those of one monotonic clock, in seconds. Only questions count: who is not asked for
    a while, because whoever asks was busy, is not silent for that.
    """

    silent_since: float | None = None
    heard: bool = False

    def answered(self) -> None:
        """They answered."""
        self.silent_since, self.heard = None, True

    def missed(self, asked_at: float) -> None:
        """What they were asked then has had no answer."""
        if self.silent_since is None:
            self.silent_since = asked_at

    def silence_s(self, now: float) -> float:
        """For how long they have been silent."""
        return 0.0 if self.silent_since is None else now - self.silent_since

    def presence(self, now: float) -> Presence:
        """Whether they are there, suspected or lost."""
        intervals = self.silence_s(now) / INTERVAL_S
        if intervals >= LOST_AFTER:
            return Presence.LOST
        if intervals >= SUSPECTED_AFTER:
            return Presence.SUSPECTED
        return Presence.ANSWERS if self.heard else Presence.UNHEARD


@dataclass(frozen=True)
class HostFaults:
    """By host: which part of it is ``gone``, in words, and whose NIC has ``no_carrier``."""

    gone: Mapping[str, str] = field(default_factory=dict)
    no_carrier: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def words(self) -> Mapping[str, str]:
        """All of it, by host."""
        return {**self.no_carrier, **self.gone}


def host_faults(lab: Lab, samples: Mapping[str, Sequence[AgentStatus]]) -> HostFaults:
    """What all of the latest ``samples`` of a server say; two at least, as NICs move about."""
    gone: dict[str, str] = {}
    no_carrier: dict[str, str] = {}
    for host in lab.hosts:
        of_server = samples.get(host.server.name, ())
        if len(of_server) < 2:
            continue
        if all(_gpu_problem(host, sample) for sample in of_server):
            assert host.gpu is not None
            gone[host.name] = f"{host.gpu.name} of {host.server.name}: " + _gpu_problem(
                host, of_server[-1]
            )
            continue
        nics = [nic for sample in of_server for nic in sample.nics if nic.name == host.nic.name]
        if nics and all(nic.problem for nic in nics):
            words = f"{host.nic.name} of {host.server.name}: {nics[-1].problem}"
            dark = not any(nic.carrier for nic in nics)
            (no_carrier if dark else gone)[host.name] = words
    return HostFaults(gone, no_carrier)


def _gpu_problem(host: Host, sample: AgentStatus) -> str:
    return next((g.problem for g in sample.gpus if host.gpu and g.name == host.gpu.name), "")


def unfit_hosts(
    lab: Lab, silent: Iterable[str], faults: HostFaults, links: Links | None
) -> dict[str, str]:
    """The hosts that no job can use now, and why; ``silent`` are servers.

    A NIC that no circuit lights, as far as ``links`` are known, has no carrier for that: a circuit
    may be made for it.
    """
    dark = {host.name for host in lab.hosts if links is None or links.peer(host.endpoint) is None}
    no_carrier = {name: why for name, why in faults.no_carrier.items() if name not in dark}
    quiet = set(silent)
    without_agent = {
        host.name: f"the agent of {host.server.name} is silent"
        for host in lab.hosts
        if host.server.name in quiet
    }
    return {**no_carrier, **faults.gone, **without_agent}
