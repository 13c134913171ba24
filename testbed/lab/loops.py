"""Finds loops of links through packet switches that flood frames without a spanning tree."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from patchlight.testbed.lab.model import Endpoint, Lab

Link = tuple[Endpoint, Endpoint]


def harmful_loops(
    lab: Lab,
    links: Iterable[Link],
    *,
    all_flood: bool = False,
) -> list[tuple[Link, ...]]:
    """Groups of links, each with loops that at least one switch floods; sorted.

    A flooded frame goes around such a loop forever, also by way of switches that forward by tables:
    their next hop may lead back. Where all switches of a loop run a spanning tree it is harmless;
    others do not pass on its messages. ``all_flood``: all switches flood, without a spanning tree.
    """
    flooding = {s.name for s in lab.packet_switches if all_flood or s.floods}
    blocking = {
        s.name
        for s in lab.packet_switches
        if s.spanning_tree and not all_flood
    }
    names = set(lab.switch_names)
    trunks = sorted(
        {(a, b) for a, b in links if names.issuperset((a.device, b.device))}
    )
    found = []
    for block in _blocks(trunks):
        devices = {end.device for link in block for end in link}
        is_loop = len(block) > 1 or len(devices) == 1
        if is_loop and devices & flooding and not devices <= blocking:
            found.append(tuple(sorted(block)))
    return sorted(found)


def closed_loops(
    lab: Lab,
    before: Collection[Link],
    after: Collection[Link],
) -> list[str]:
    """Each group of harmful loops that has a link of ``after`` which ``before`` lacks, as text."""
    if not any(switch.floods for switch in lab.packet_switches):
        return []
    old = set(before)
    return [
        in_words(loop)
        for loop in harmful_loops(lab, after)
        if not old.issuperset(loop)
    ]


def in_words(loop: Collection[Link]) -> str:
    """Its links as text, four at most."""
    shown = [f"{a} – {b}" for a, b in loop][:4]
    left = len(loop) - len(shown)
    return ", ".join(shown) + (f" and {left} more links" if left else "")


def _blocks(links: Collection[Link]) -> Iterator[list[Link]]:
    """The links in groups: two are in one if a loop has both (Hopcroft and Tarjan, 1973)."""
    at: defaultdict[str, list[tuple[str, Link]]] = defaultdict(list)
    for link in links:
        a, b = (end.device for end in link)
        if a == b:
            yield [link]
            continue
        at[a].append((b, link))
        at[b].append((a, link))
    depth: dict[str, int] = {}
    low: dict[str, int] = {}
    for root in at:
        if root in depth:
            continue
        depth[root] = low[root] = 0
        passed = list[Link]()
        done = set[Link]()
        # Devices on the way from the root, the link to each, and its links still to follow.
        way: list[tuple[str, Link | None, Iterator[tuple[str, Link]]]]
        way = [(root, None, iter(at[root]))]
        while way:
            here, to_here, ahead = way[-1]
            for there, link in ahead:
                if link in done:
                    continue
                done.add(link)
                passed.append(link)
                if there in depth:
                    low[here] = min(low[here], depth[there])
                    continue
                depth[there] = low[there] = depth[here] + 1
                way.append((there, link, iter(at[there])))
                break
            else:
                way.pop()
                if to_here is None:
                    continue
                before = way[-1][0]
                low[before] = min(low[before], low[here])
                if low[here] >= depth[before]:
                    first = passed.index(to_here)
                    yield passed[first:]
                    del passed[first:]
