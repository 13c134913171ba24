"""What power each circuit showed when it was verified good: what it should show again.

A loss budget has to allow for every connector and every mirror of the lab, so a circuit can
lose half its light and stay inside it. The same two ports with the same transmitter show the
same power each time within some tenths of a dB; what is missing since then is dirt, a bent
fibre or a mirror that drifts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import TYPE_CHECKING

from controller.store import BaselineKey, Store
from testbed.lab import Endpoint
from testbed.portmap import CrossConnect

if TYPE_CHECKING:
    from controller.verification import Judged

READINGS_KEPT = 9
"""The baseline is the median of so many readings: one that is off does not move it."""

Readings = Mapping[BaselineKey, tuple[float, ...]]


class Baselines:
    """Output powers (dBm) of circuits by their two ports and who sends the light.

    A reading is taken when a circuit is made and found good, and at no other time: else light
    that fades slowly while somebody looks at it often would take its baseline along.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._readings: dict[str, dict[BaselineKey, tuple[float, ...]]] = {}

    def dbm(self, ocs: str, c: CrossConnect, source: Endpoint | None) -> float | None:
        """The median of the last good readings of this circuit; ``None`` if there are none."""
        readings = self._of(ocs).get(_key(ocs, c, source))
        return None if readings is None else round(median(readings), 2)

    def with_readings(self, ocs: str, good: Iterable[Judged]) -> Readings:
        """What is to be kept once these circuits were found good; keeps nothing itself."""
        kept: dict[BaselineKey, tuple[float, ...]] = {}
        for each in good:
            if each.out_dbm is not None:
                key = _key(ocs, each.cross_connect, each.source)
                earlier = self._of(ocs).get(key, ())
                kept[key] = (*earlier, each.out_dbm)[-READINGS_KEPT:]
        return kept

    def begin_anew(self, ocs: str, judged: Iterable[Judged]) -> int:
        """Take these powers for the baselines from now on; how many there are."""
        new = {
            _key(ocs, each.cross_connect, each.source): (each.out_dbm,)
            for each in judged
            if each.out_dbm is not None
        }
        self._store.save_baselines(new)
        self.take(new)
        return len(new)

    def take(self, readings: Readings) -> None:
        """These are in the store now."""
        for key, values in readings.items():
            self._of(key[0])[key] = values

    def _of(self, ocs: str) -> dict[BaselineKey, tuple[float, ...]]:
        if ocs not in self._readings:
            self._readings[ocs] = self._store.baselines(ocs)
        return self._readings[ocs]


def _key(ocs: str, c: CrossConnect, source: Endpoint | None) -> BaselineKey:
    return ocs, c.inp, c.out, str(source or "")
