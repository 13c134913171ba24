"""What is wrong with hosts, by what the agents of their servers said of late. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.lab.wiring import Links
from patchlight.testbed.wire.agent_status import AgentStatus


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
