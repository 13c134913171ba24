"""The health of hosts: which agents answer, which faults they report, which NICs differ. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.lab.wiring import Links
from patchlight.testbed.wire.agent_status import AgentStatus, NicStatus

INTERVAL_S = 3.0
"""An agent should answer once in so long. It is called every second."""

SUSPECTED_AFTER = 3
"""Silent for so many intervals, nothing new is begun with it."""

LOST_AFTER = 10
"""Silent for so many, what it had is taken for lost."""


class Presence(StrEnum):
    """What an agent's silence means, if it is silent."""

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
    """Since when an agent has not answered (monotonic seconds). Only calls count: an agent that was
    not called for a while is not silent."""

    silent_since: float | None = None
    heard: bool = False

    def answered(self) -> None:
        """The agent answered."""
        self.silent_since, self.heard = None, True

    def missed(self, asked_at: float) -> None:
        """A call of that time had no answer."""
        if self.silent_since is None:
            self.silent_since = asked_at

    def silence_s(self, now: float) -> float:
        """For how long it has been silent."""
        return 0.0 if self.silent_since is None else now - self.silent_since

    def presence(self, now: float) -> Presence:
        """Whether it answers, is suspected or lost."""
        intervals = self.silence_s(now) / INTERVAL_S
        if intervals >= LOST_AFTER:
            return Presence.LOST
        if intervals >= SUSPECTED_AFTER:
            return Presence.SUSPECTED
        return Presence.ANSWERS if self.heard else Presence.UNHEARD


@dataclass(frozen=True)
class HostFaults:
    """By host, as text: the part of it that is ``gone``, and why its NIC has ``no_carrier``."""

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
    """The hosts that no job can use now, and why. A NIC without a circuit lacks its carrier because
    of that: a circuit may be made for it."""
    dark = {host.name for host in lab.hosts if links is None or links.peer(host.endpoint) is None}
    no_carrier = {name: why for name, why in faults.no_carrier.items() if name not in dark}
    quiet = set(silent)
    without_agent = {
        host.name: f"the agent of {host.server.name} is silent"
        for host in lab.hosts
        if host.server.name in quiet
    }
    return {**no_carrier, **faults.gone, **without_agent}


def differences(lab: Lab, links: Links | None, nics: Mapping[str, NicStatus]) -> list[str]:
    """The settings that differ between NICs of one circuit or one packet switch, as text.

    MTU, DSCP (the mark of packets, and the priority of each) and PFC; ``nics`` has the status of
    each by ``server.nic``. Ports of packet switches are not compared: these report no settings.
    """
    found = []
    for hosts in () if links is None else _set_alike(lab, links):
        settings = {host: _settings(host, nics.get(str(host.endpoint))) for host in hosts}
        for name in ("MTU", "PFC", "DSCP", "DSCP's priorities"):
            by_value: dict[str, list[str]] = defaultdict(list)
            for host, told in settings.items():
                if name in told:
                    by_value[told[name]].append(str(host.endpoint))
            if len(by_value) > 1:
                rows = []
                # The fewest first: they are likely those to be mended.
                for value, ends in sorted(by_value.items(), key=lambda row: (len(row[1]), row[0])):
                    more = f" and {len(ends) - 3} more" if len(ends) > 3 else ""
                    rows.append(f"{value} at {', '.join(ends[:3])}{more}")
                found.append(f"{name} differs: {'; '.join(rows)}")
    return found


def _set_alike(lab: Lab, links: Links) -> Iterator[Sequence[Host]]:
    """The hosts whose NICs need the same settings: two of a circuit, those of one switch."""
    hosts = {host.endpoint: host for host in lab.hosts}
    at_switch: dict[str, list[Host]] = defaultdict(list)
    for endpoint, host in hosts.items():
        peer = links.peer(endpoint)
        if peer is None:
            continue
        if peer not in hosts:
            at_switch[peer.device].append(host)
        elif endpoint < peer:
            yield host, hosts[peer]
    yield from at_switch.values()


def _settings(host: Host, told: NicStatus | None) -> dict[str, str]:
    settings = {"DSCP": "none" if host.nic.dscp is None else str(host.nic.dscp)}
    if told is None:
        return settings
    if told.mtu is not None:
        settings["MTU"] = str(told.mtu)
    if told.pfc is not None:
        settings["PFC"] = ", ".join(map(str, told.pfc)) or "off"
    if told.dscp_priorities is not None:
        pairs = sorted(told.dscp_priorities.items())
        settings["DSCP's priorities"] = ", ".join(f"{d} is {p}" for d, p in pairs) or "none"
    return settings
