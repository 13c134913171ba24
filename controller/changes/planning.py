"""What has to change, as a value: from the maps the devices have to the maps wanted.

Pure: maps in, a ``Plan`` out. ``patchlight.controller.changes.change`` carries it out.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from patchlight.testbed.lab.labmaps import Place, check_map, entries_at
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.portmap import AnyMap, MapChange
from patchlight.testbed.lab.wiring import Links, lab_links

Changes = Mapping[str, MapChange[Any]]
"""What changes on each optical switch, by name."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One change of the network.

    ``before`` and ``wanted`` are the maps of the optical switches; ``changes`` the smallest change
    of each that has one. ``links_staying`` are up before and after alike: only
    on them may anything be sent while circuits change. ``moved`` are the ports whose link goes
    down, comes up, or leads to another port at the far end.
    """

    before: Mapping[str, AnyMap]
    wanted: Mapping[str, AnyMap]
    changes: Changes
    links_before: Links
    links_staying: Links
    links_after: Links
    moved: frozenset[Endpoint]

    def __bool__(self) -> bool:
        return bool(self.changes)


def plan(lab: Lab, before: Mapping[str, AnyMap], wanted: Mapping[str, AnyMap]) -> Plan:
    """The plan that turns the maps ``before`` into ``wanted``.

    ``before`` holds every optical switch of the lab; ``wanted`` those that should change. Where
    wavelengths do not matter, light is followed through the cross-connects that differ, and through
    no others. ``BadInput`` where a wanted map names a switch, port or channel that is not there.
    """
    for name, wanted_map in wanted.items():
        check_map(lab.optical_switch(name), wanted_map)
    after = {**before, **wanted}
    diffs = {name: before[name].diff(wanted[name]) for name in before if name in wanted}
    changes = {name: change for name, change in diffs.items() if change}
    staying = {name: before[name].without(change.breaks) for name, change in changes.items()}
    links_before, links_after = lab_links(lab, before), lab_links(lab, after)
    return Plan(
        before=dict(before),
        wanted=after,
        changes=changes,
        links_before=links_before,
        links_staying=lab_links(lab, {**before, **staying}),
        links_after=links_after,
        moved=frozenset(_moved(changes, links_before, links_after)),
    )


def _moved(changes: Changes, before: Links, after: Links) -> Iterable[Endpoint]:
    if changes and before.light is not None:
        # New light may also put out some that passes none of the entries that change.
        sources = before.paths.keys() | after.paths.keys()
        return [s for s in sources if before.paths.get(s) != after.paths.get(s)]
    return (
        source
        for name, change in changes.items()
        for links, differing in ((before, change.breaks), (after, change.makes))
        for source in links.sources(name, differing)
    )


def wanted_maps(
    lab: Lab,
    present: Mapping[str, AnyMap],
    asked: Mapping[str, AnyMap],
    dropped: Mapping[str, Collection[int | Place]],
    *,
    only: bool,
) -> dict[str, Any]:
    """The maps that a request means.

    What is ``asked`` for is added to what is there, or with ``only`` takes its place; places
    that are ``dropped`` lose their entries, in and out. ``BadInput`` for an optical switch that
    the lab does not have.
    """
    for name in (*asked, *dropped):
        lab.optical_switch(name)  # says so if there is none
    wanted: dict[str, AnyMap] = {}
    for name in {**asked, **dict.fromkeys(dropped)}:
        if only and name in asked:
            wanted[name] = asked[name]
            continue
        gone = dropped.get(name, ())
        kept = present[name].without(entries_at(present[name], gone)) if gone else present[name]
        wanted[name] = kept.joined(asked[name]) if name in asked else kept
    return wanted


def difference(before: Mapping[str, AnyMap], now: Mapping[str, AnyMap]) -> str:
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
