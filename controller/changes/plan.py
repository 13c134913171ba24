"""Plans a change: from the present and the wanted maps to what each switch breaks and makes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from patchlight.testbed.lab.loops import closed_loops
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.portmap import AnyMap, MapChange
from patchlight.testbed.lab.reach import Reach
from patchlight.testbed.lab.wiring import Links, check_map, lab_links

Changes = Mapping[str, MapChange[Any]]
"""The changes of each optical switch, by name."""


@dataclass(
    frozen=True,
    slots=True,
)
class ChangePlan:
    """One change of the network, from the maps ``before`` to the maps ``wanted``.

    ``changes``: the smallest change of each affected switch. ``moved``: the ports whose link goes
    down, comes up or gets another end. ``links_prepared``: what packet switches forward over while
    circuits change: links that stay, and those new links of NICs over which no frame can loop.
    """

    before: Mapping[str, AnyMap]
    wanted: Mapping[str, AnyMap]
    changes: Changes
    links_before: Links
    links_prepared: Links
    links_after: Links
    moved: frozenset[Endpoint]

    def __bool__(self) -> bool:
        return bool(self.changes)

    def moves_trunk(self, lab: Lab) -> bool:
        """Whether a link between two packet switches goes down or comes up."""
        switches = set(lab.switch_names)
        return any(
            peer.device in switches
            for end in self.moved
            if end.device in switches
            for links in (self.links_before, self.links_after)
            for peer in links.peers(end)
        )

    def losing_link(self, lab: Lab) -> dict[str, str]:
        """Affected hosts without a link after it, and why."""
        moved = [
            host for end, host in lab.hosts_at.items() if end in self.moved
        ]
        return Reach(lab, self.links_after).reasons(moved) if moved else {}


def plan_change(
    lab: Lab,
    before: Mapping[str, AnyMap],
    wanted: Mapping[str, AnyMap],
) -> ChangePlan:
    """The plan from the maps ``before`` to ``wanted``.

    ``before`` has every optical switch of the lab, ``wanted`` those that should change. Without
    wavelengths, only paths through changed cross-connects are traced. ``BadInput`` if a wanted map
    names an unknown switch, port or channel.
    """
    for name, wanted_map in wanted.items():
        check_map(lab.optical_switch(name), wanted_map)
    after = {**before, **wanted}
    diffs = {
        name: before[name].diff(wanted[name])
        for name in before
        if name in wanted
    }
    changes = {name: change for name, change in diffs.items() if change}
    links_before = lab_links(lab, before)
    links_after = lab_links(lab, after)
    moved = _moved(changes, links_before, links_after)
    early = (
        set()
        if lab.coloured
        else _of_new_nics(
            lab,
            moved,
            links_before,
            links_after,
        )
    )
    prepared = {
        name: after[name].without(
            set(change.makes).difference(e for ocs, e in early if ocs == name)
        )
        for name, change in changes.items()
    }
    return ChangePlan(
        before=dict(before),
        wanted=after,
        changes=changes,
        links_before=links_before,
        links_prepared=lab_links(lab, {**before, **prepared}),
        links_after=links_after,
        moved=moved,
    )


def _of_new_nics(
    lab: Lab,
    moved: Iterable[Endpoint],
    before: Links,
    after: Links,
) -> set[tuple[str, Any]]:
    """The entries, by switch, of new links between a NIC and a packet switch's port that led to no
    packet switch ``before``. Meanwhile it leads nowhere else."""
    switches = set(lab.switch_names)
    entries = set[tuple[str, Any]]()
    for source in moved:
        peer = after.peer(source)
        if peer is None:
            continue
        ports = [end for end in (source, peer) if end.device in switches]
        path = after.path(source) if len(ports) == 1 else None
        if path is None:
            continue
        led = before.path(ports[0])
        if led is None or led.sink.device not in switches:
            entries.update(path.hops)
    return entries


def _moved(
    changes: Changes,
    before: Links,
    after: Links,
) -> frozenset[Endpoint]:
    if changes and before.light is not None:
        # New signals may also disturb paths that use no changed entry.
        sources = before.paths.keys() | after.paths.keys()
        return frozenset(
            s for s in sources if before.paths.get(s) != after.paths.get(s)
        )
    return frozenset().union(
        *(before.sources(name, each.breaks) for name, each in changes.items()),
        *(after.sources(name, each.makes) for name, each in changes.items()),
    )


def objections(lab: Lab, plan: ChangePlan) -> list[str]:
    """Why a plan must not be carried out, whatever the devices report: signals that would newly
    collide, and loops that it would close."""
    return [*_collisions(plan), *_loops(lab, plan)]


def _collisions(plan: ChangePlan) -> list[str]:
    """Each pair of signals that would newly collide after this plan, as text."""
    before = plan.links_before.light
    after = plan.links_after.light
    if before is None or after is None:
        return []
    now = {
        frozenset((meeting.one, meeting.other)) for meeting in before.meetings
    }
    return [
        str(meeting)
        for meeting in after.meetings
        if frozenset((meeting.one, meeting.other)) not in now
    ]


def _loops(lab: Lab, plan: ChangePlan) -> list[str]:
    """Each loop through switches that flood which this plan would close, as text; on the way there
    are only some of the links before, or some of those after."""
    if not any(switch.floods for switch in lab.packet_switches):
        return []
    return [
        f"it would close a loop through switches that flood, without a spanning tree: {loop}"
        for loop in closed_loops(
            lab, plan.links_before.pairs(), plan.links_after.pairs()
        )
    ]
