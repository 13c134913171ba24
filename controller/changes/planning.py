"""What has to change, as a value: from the maps the devices have to the maps wanted.

Pure: maps in, a ``Plan`` out. ``patchlight.controller.changes.change`` carries it out.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from patchlight.testbed.lab import Endpoint, Lab
from patchlight.testbed.portmap import PortMap, PortMapChange
from patchlight.testbed.wiring import Links, trace_links


@dataclass(frozen=True, slots=True)
class Plan:
    """One change of the network.

    ``before`` and ``wanted`` are the maps of the circuit switches concerned; ``changes`` the
    smallest change of each that has one. ``links_staying`` are up before and after alike: only
    on them may anything be sent while circuits change. ``moved`` are the ports whose link goes
    down, comes up, or leads to another port at the far end.
    """

    before: Mapping[str, PortMap]
    wanted: Mapping[str, PortMap]
    changes: Mapping[str, PortMapChange]
    links_before: Links
    links_staying: Links
    links_after: Links
    moved: frozenset[Endpoint]

    def __bool__(self) -> bool:
        return bool(self.changes)


def plan(lab: Lab, before: Mapping[str, PortMap], wanted: Mapping[str, PortMap]) -> Plan:
    """The plan that turns the maps ``before`` into ``wanted``.

    ``before`` holds every circuit switch of the lab; ``wanted`` those that should change.
    Light is followed through the cross-connects that differ, and through no others. ``BadInput``
    where a wanted map names a switch or port that the lab does not have.
    """
    for name, port_map in wanted.items():
        port_map.check(lab.circuit_switch(name).ports)
    after = {**before, **wanted}
    diffs = {name: before[name].diff(wanted[name]) for name in before if name in wanted}
    changes = {name: change for name, change in diffs.items() if change}
    staying = {name: before[name].without(change.breaks) for name, change in changes.items()}
    links_before, links_after = trace_links(lab, before), trace_links(lab, after)
    moved = [
        source
        for name, change in changes.items()
        for links, differing in ((links_before, change.breaks), (links_after, change.makes))
        for source in links.sources(name, differing)
    ]
    return Plan(
        before=dict(before),
        wanted=after,
        changes=changes,
        links_before=links_before,
        links_staying=trace_links(lab, {**before, **staying}),
        links_after=links_after,
        moved=frozenset(moved),
    )


def wanted_maps(
    lab: Lab,
    present: Mapping[str, PortMap],
    asked: Mapping[str, PortMap],
    dropped: Mapping[str, Collection[int]],
    *,
    only: bool,
) -> dict[str, PortMap]:
    """The maps that a request means.

    What is ``asked`` for is added to what is there, or with ``only`` takes its place; ports
    that are ``dropped`` lose their cross-connects, in and out. ``BadInput`` for a circuit
    switch that the lab does not have.
    """
    for name in (*asked, *dropped):
        lab.circuit_switch(name)  # says so if there is none
    wanted: dict[str, PortMap] = {}
    for name in {**asked, **dict.fromkeys(dropped)}:
        gone = set(dropped.get(name, ()))
        kept = PortMap.of(c for c in present[name] if not gone & {c.inp, c.out})
        additions = asked.get(name, PortMap())
        wanted[name] = additions if only and name in asked else kept.joined(additions)
    return wanted


def difference(before: Mapping[str, PortMap], now: Mapping[str, PortMap]) -> str:
    """In words, how the maps ``now`` differ from those ``before``; empty if they do not.

    A map that is not known now is not compared.
    """
    return "; ".join(
        f"the map of {name} changed meanwhile: "
        + ", ".join(
            [f"{c} is gone" for c in earlier.diff(now[name]).breaks]
            + [f"{c} is new" for c in earlier.diff(now[name]).makes]
        )
        for name, earlier in before.items()
        if name in now and now[name] != earlier
    )
