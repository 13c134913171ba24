"""The last committed map of each OCS: what the devices should have, as far as we were told."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from patchlight.controller.changes.planning import Plan
from patchlight.controller.changes.record import Reconfiguration, as_texts
from patchlight.controller.store import Store
from patchlight.testbed.portmap import CrossConnect, PortMap


@dataclass(frozen=True)
class Drift:
    """How a device differs from its last committed map; changes nothing by itself."""

    missing: tuple[CrossConnect, ...]
    unknown: tuple[CrossConnect, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.unknown)

    def as_texts(self) -> dict[str, list[str]]:
        """The difference as events and the API have it."""
        return {
            "missing": [str(c) for c in self.missing],
            "unknown": [str(c) for c in self.unknown],
        }


class CommittedMaps:
    """Committed maps, remembered in the store with the change that made them so."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._maps = {o: PortMap.parse(row["map"]) for o, row in store.committed_maps().items()}

    @property
    def maps(self) -> dict[str, PortMap]:
        """The committed map of each OCS that has one."""
        return dict(self._maps)

    def after(self, plan: Plan, adopts: Mapping[str, PortMap]) -> dict[str, PortMap]:
        """The committed maps once this plan is carried out.

        Only what was asked for is taken over: a cross-connect that somebody else made or
        broke on the device goes on to differ. ``adopts`` are asked for by name.
        """
        maps: dict[str, PortMap] = {}
        for name in {**plan.changes, **adopts}:
            committed, wanted = self._maps.get(name), plan.wanted[name]
            adopted = adopts.get(name, PortMap())
            if committed is None or committed == plan.before[name] or adopted == wanted:
                maps[name] = wanted
                continue
            change = plan.before[name].diff(wanted)
            gone = frozenset(change.breaks)
            kept = PortMap.of(c for c in committed if c not in gone)
            maps[name] = kept.joined(PortMap.of(change.makes)).joined(adopted)
        return maps

    def of(self, record: Reconfiguration) -> dict[str, PortMap]:
        """The committed maps that a finished change leaves behind, from its record alone."""
        changed = {**record.changes, **record.commits, **dict.fromkeys(record.adopted)}
        return {
            name: PortMap.parse(record.commits.get(name, record.wanted[name])) for name in changed
        }

    def rows(self, maps: Mapping[str, PortMap], record: Reconfiguration) -> dict[str, Any]:
        """As the store takes them, with the change they come from."""
        return {
            name: {"map": as_texts(m), "reconfiguration": record.id, "at": record.finished_at}
            for name, m in maps.items()
        }

    def take(self, maps: Mapping[str, PortMap]) -> None:
        """These are committed now; the store has them already."""
        self._maps.update(maps)

    def begin_with(self, present: Mapping[str, PortMap]) -> None:
        """Commit what devices that were never seen before have."""
        new = {name: m for name, m in present.items() if name not in self._maps}
        now = time.time()
        self._store.commit_maps(
            {n: {"map": as_texts(m), "reconfiguration": None, "at": now} for n, m in new.items()}
        )
        self._maps.update(new)

    def drift(self, present: Mapping[str, PortMap]) -> dict[str, Drift]:
        """How each device differs from its committed map."""
        drift = {}
        for name, now in present.items():
            change = self._maps.get(name, now).diff(now)
            drift[name] = Drift(missing=change.breaks, unknown=change.makes)
        return drift
