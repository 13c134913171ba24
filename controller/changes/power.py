"""Judges the optical power of circuits by the loss budget and by earlier power.

Loss budget: power at an output = launch power − fibre losses − insertion losses, in dB.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, NamedTuple

from patchlight.controller.changes.record import StepFailed
from patchlight.controller.circuits import contract
from patchlight.controller.circuits.contract import AnyDriver, DirectedPort
from patchlight.controller.storage.store import BaselineKey, Store
from patchlight.testbed.lab.model import Endpoint, Lab, OpticalSwitch
from patchlight.testbed.lab.optical_links import Entry, launch_power_dbm
from patchlight.testbed.lab.portmap import CrossConnect
from patchlight.testbed.lab.spectrum import ChannelConnect
from patchlight.testbed.lab.wavelengths import WavelengthSwitch
from patchlight.testbed.lab.wiring import Links


def measures_each(switch: OpticalSwitch, driver: AnyDriver) -> bool:
    """Whether the device measures each entry's output power; at a WSS, by channel."""
    if isinstance(switch, WavelengthSwitch) and not isinstance(
        driver, contract.TellsChannelPowers
    ):
        return False
    return driver.capabilities.power_out


async def powers_of(
    driver: AnyDriver,
    entries: Sequence[Entry],
    arriving_dbm: Mapping[DirectedPort, float | None],
) -> list[tuple[float | None, float | None]]:
    """The input and output power (dBm) of each entry; ``None`` without a signal or a monitor.

    Inputs in ``arriving_dbm`` were just measured, and are not measured again: no optical switch
    feeds them.
    """
    ends = [
        (DirectedPort("in", c.inp), DirectedPort("out", c.out))
        for c in entries
    ]
    if any(isinstance(c, ChannelConnect) for c in entries):
        return await _of_channels(driver, entries, ends)
    ports = [out for _, out in ends]
    if driver.capabilities.power_in:
        ports += [inp for inp, _ in ends if inp not in arriving_dbm]
    measured_dbm = {**arriving_dbm, **await driver.power(ports)}
    return [
        (measured_dbm.get(inp), measured_dbm.get(out)) for inp, out in ends
    ]


async def _of_channels(
    driver: AnyDriver,
    entries: Sequence[Entry],
    ends: Sequence[tuple[DirectedPort, DirectedPort]],
) -> list[tuple[float | None, float | None]]:
    if not isinstance(driver, contract.TellsChannelPowers):
        return [(None, None)] * len(entries)
    measured_dbm = await driver.channel_powers(
        {port: None for both in ends for port in both}
    )

    def power_dbm(port: DirectedPort, entry: Entry) -> float | None:
        channel = entry.channel if isinstance(entry, ChannelConnect) else None
        return (
            None
            if channel is None
            else measured_dbm.get(port, {}).get(channel)
        )

    return [
        (power_dbm(inp, entry), power_dbm(out, entry))
        for (inp, out), entry in zip(ends, entries, strict=True)
    ]


VerdictKind = Literal["ok", "degraded", "unverified", "failed"]


@dataclass(
    frozen=True,
    slots=True,
)
class Tolerances:
    """The tolerance of measured power, in dB.

    ``budget_db``: from the loss budget, up or down; covers connectors, ageing and the spread of
    insertion loss, but not a wrong mirror. ``baseline_db``: below the earlier power of the circuit;
    mirrors and monitors repeat within some tenths of a dB.
    """

    budget_db: float = 3.0
    baseline_db: float = 1.5


DEFAULT_TOLERANCES = Tolerances()

POWER_CEILING_DBM = 13.0
"""The maximum power through the mirrors and into a receiver."""

# Monitors read noise at ports without a signal: below this input power, losses mean nothing.
_DIMMEST_DBM = -30.0


@dataclass(
    frozen=True,
    slots=True,
)
class Expected:
    """The power expected at the output of an entry, and its transmitter."""

    power_dbm: float
    source: Endpoint


def expected_powers(
    lab: Lab,
    links: Links,
    only: tuple[str, Iterable[Entry]] | None = None,
) -> dict[tuple[str, Entry], Expected]:
    """The expected power of each entry on a path to a receiver, or of those in ``only``."""
    expected: dict[tuple[str, Entry], Expected] = {}
    for path in (
        links.paths.values() if only is None else links.paths_through(*only)
    ):
        launched_dbm = launch_power_dbm(lab, path.source)
        for entry, lost_db in links.passed(path):
            expected[entry] = Expected(
                round(launched_dbm - lost_db, 3), path.source
            )
    return expected


class ExpectedReading(NamedTuple):
    """The expected power (dBm) of a circuit: by the loss budget, and from earlier."""

    cross_connect: Entry
    expected: Expected | None
    baseline_dbm: float | None


class PowerVerdict(NamedTuple):
    """The verdict on a cross-connect's power, with a text unless it is ``ok``.

    ``failed``: down, or too much loss. ``degraded``: up, with less power than before.
    ``unverified``: not known.
    """

    kind: VerdictKind
    words: str = ""


_OK = PowerVerdict("ok")


def judge(
    expected: Expected | None,
    baseline_dbm: float | None,
    made: Entry,
    in_dbm: float | None,
    out_dbm: float | None,
    insertion_loss_db: float,
    tolerances: Tolerances = DEFAULT_TOLERANCES,
) -> PowerVerdict:
    """Judge a cross-connect by the power at both ends.

    It is compared with the loss budget if the transmitter is known (``expected``), and with its
    earlier power (``baseline_dbm``) if known. With neither, its loss counts, if both ends are
    measured. Without input power it is ``unverified``.
    """
    should = expected.power_dbm if expected is not None else baseline_dbm
    if should is None:
        return _judge_loss(
            made,
            in_dbm,
            out_dbm,
            insertion_loss_db + tolerances.budget_db,
        )
    if out_dbm is None:
        if in_dbm is None:
            source = expected.source if expected is not None else "anywhere"
            words = f"{made}: unverified, no signal from {source} arrives at in:{made.inp}"
            return PowerVerdict("unverified", words)
        words = (
            f"{made}: no power at out:{made.out}, expected {should:.1f} dBm"
        )
        return PowerVerdict("failed", words)
    if (
        expected is not None
        and abs(out_dbm - expected.power_dbm) > tolerances.budget_db
    ):
        words = f"{made}: {out_dbm:.1f} dBm at out:{made.out}, expected {should:.1f} dBm"
        return PowerVerdict("failed", words)
    if (
        baseline_dbm is not None
        and baseline_dbm - out_dbm > tolerances.baseline_db
    ):
        words = (
            f"{made}: degraded, {out_dbm:.1f} dBm at out:{made.out}, "
            f"{baseline_dbm - out_dbm:.1f} dB less than before ({baseline_dbm:.1f} dBm)"
        )
        return PowerVerdict("degraded", words)
    return _OK


def _judge_loss(
    made: Entry,
    in_dbm: float | None,
    out_dbm: float | None,
    most_db: float,
) -> PowerVerdict:
    if in_dbm is None or in_dbm < _DIMMEST_DBM:
        words = f"{made}: unverified, no known source on in:{made.inp}"
        return PowerVerdict(
            "unverified",
            words + (", no power reading" if out_dbm is None else ""),
        )
    if out_dbm is None:
        words = f"{made}: no power at out:{made.out}, but {in_dbm:.1f} dBm at in:{made.inp}"
        return PowerVerdict("failed", words)
    if in_dbm - out_dbm > most_db:
        words = f"{made}: loses {in_dbm - out_dbm:.1f} dB, expected at most {most_db:.1f} dB"
        return PowerVerdict("failed", words)
    return _OK


READINGS_KEPT = 9
"""The baseline is the median of this many readings, so outliers do not matter."""

Readings = Mapping[BaselineKey, tuple[float, ...]]


@dataclass(frozen=True)
class PortReading:
    """The power (dBm) of one cross-connect: measured, by the loss budget, and from earlier."""

    cross_connect: Entry
    in_dbm: float | None
    out_dbm: float | None
    expected: Expected | None
    baseline_dbm: float | None
    verdict: PowerVerdict

    @property
    def source(self) -> Endpoint | None:
        """The transmitter, if it is known."""
        return self.expected.source if self.expected is not None else None

    @property
    def good(self) -> bool:
        """Whether it may become a baseline: verified, or the first power of an unknown circuit."""
        first = self.verdict.kind == "unverified" and self.out_dbm is not None
        return self.verdict.kind == "ok" or (
            first and self.baseline_dbm is None
        )


class PowerBaselines:
    """Earlier output powers (dBm) of circuits, by their ports and transmitter.

    Readings are only taken when a circuit is made and verified: otherwise the baseline would follow
    slowly fading power.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._readings: dict[str, dict[BaselineKey, tuple[float, ...]]] = {}

    def dbm(
        self,
        ocs: str,
        c: Entry,
        source: Endpoint | None,
    ) -> float | None:
        """The median of the last good readings of this circuit; ``None`` without any."""
        readings = self._of(ocs).get(_key(ocs, c, source))
        if readings is None:
            return None
        return round(median(readings) if len(readings) > 1 else readings[0], 2)

    def with_readings(self, ocs: str, good: Iterable[PortReading]) -> Readings:
        """The readings to store if these circuits are committed."""
        kept: dict[BaselineKey, tuple[float, ...]] = {}
        known = self._of(ocs)
        for reading in good:
            if reading.out_dbm is not None:
                key = _key(ocs, reading.cross_connect, reading.source)
                earlier = known.get(key, ())
                kept[key] = (*earlier, reading.out_dbm)[-READINGS_KEPT:]
        return kept

    def begin_anew(self, ocs: str, readings: Iterable[PortReading]) -> int:
        """Replace the baselines with these powers; returns their number."""
        new = {
            _key(ocs, reading.cross_connect, reading.source): (
                reading.out_dbm,
            )
            for reading in readings
            if reading.out_dbm is not None
        }
        self._store.save_baselines(new)
        self.take(new)
        return len(new)

    def take(self, readings: Readings) -> None:
        """These are stored now."""
        for key, values in readings.items():
            self._of(key[0])[key] = values

    def _of(self, ocs: str) -> dict[BaselineKey, tuple[float, ...]]:
        if ocs not in self._readings:
            self._readings[ocs] = self._store.baselines(ocs)
        return self._readings[ocs]


def _key(
    ocs: str,
    c: Entry,
    source: Endpoint | None,
) -> BaselineKey:
    light = str(source or "")
    if isinstance(c, ChannelConnect):
        # The channel, with its attenuation.
        light += str(c)[str(c).index("@") :]
    return ocs, c.inp, c.out, light


@dataclass(frozen=True)
class Verified:
    """``remarks`` on unverified and degraded circuits; ``good``: the readings to keep."""

    remarks: list[str]
    good: list[PortReading] = field(default_factory=list)


@dataclass(frozen=True)
class PowerCheck:
    """Judges power by the lab's loss budgets and by earlier power."""

    lab: Lab
    baselines: PowerBaselines
    tolerances: Tolerances = DEFAULT_TOLERANCES

    def expected(
        self,
        links: Links,
        ocs: str,
        cross_connects: Iterable[Entry],
    ) -> list[ExpectedReading]:
        """The expected power of these entries of a switch's map."""
        circuits = list(cross_connects)
        expected_of = expected_powers(self.lab, links, (ocs, circuits))
        should = []
        for c in circuits:
            expected = expected_of.get((ocs, c))
            source = expected.source if expected is not None else None
            should.append(
                ExpectedReading(
                    c, expected, self.baselines.dbm(ocs, c, source)
                )
            )
        return should

    async def judge(
        self,
        driver: AnyDriver,
        should: Sequence[ExpectedReading],
        arriving_dbm: Mapping[DirectedPort, float | None] | None = None,
    ) -> list[PortReading]:
        """Measure and judge cross-connects; inputs in ``arriving_dbm`` were just measured."""
        powers_dbm = await powers_of(
            driver, [c for c, _, _ in should], arriving_dbm or {}
        )
        loss_db = self.lab.optical_switch(driver.name).insertion_loss_db
        readings = []
        for (in_dbm, out_dbm), (c, expected, before_dbm) in zip(
            powers_dbm, should, strict=True
        ):
            less_db = (
                c.attenuation_db if isinstance(c, ChannelConnect) else 0.0
            )
            verdict = judge(
                expected,
                before_dbm,
                c,
                in_dbm,
                out_dbm,
                loss_db + less_db,
                self.tolerances,
            )
            readings.append(
                PortReading(
                    c,
                    in_dbm,
                    out_dbm,
                    expected,
                    before_dbm,
                    verdict,
                )
            )
        return readings

    async def verify(
        self,
        driver: AnyDriver,
        should: Sequence[ExpectedReading],
        arriving_dbm: Mapping[DirectedPort, float | None] | None = None,
    ) -> Verified:
        """``StepFailed`` if the power is wrong.

        A degraded circuit is only a remark: it carries traffic, and an undo would not help.
        """
        if not measures_each(self.lab.optical_switch(driver.name), driver):
            return Verified([await self._by_factory_losses(driver, should)])
        readings = await self.judge(driver, should, arriving_dbm)
        verdicts = [reading.verdict for reading in readings]
        if failures := [
            verdict.words for verdict in verdicts if verdict.kind == "failed"
        ]:
            raise StepFailed(f"{driver.name}: {'; '.join(failures)}")
        remarks = [
            f"{driver.name}: {verdict.words}"
            for verdict in verdicts
            if verdict.words
        ]
        return Verified(
            remarks, [reading for reading in readings if reading.good]
        )

    async def _by_factory_losses(
        self, driver: AnyDriver, should: Sequence[ExpectedReading]
    ) -> str:
        """A remark without power monitors; ``StepFailed`` if a path has too much loss."""
        words = f"{driver.name}: unverified, no power monitor"
        if driver.capabilities.power_out:
            words += " that resolves channels"
        if not isinstance(driver, contract.TellsFactoryLosses):
            return words
        circuits = [
            s.cross_connect
            for s in should
            if isinstance(s.cross_connect, CrossConnect)
        ]
        losses_db = await driver.factory_losses_db(circuits)
        most_db = self.lab.optical_switch(driver.name).insertion_loss_db
        most_db += self.tolerances.budget_db
        wrong = {
            c: loss_db for c, loss_db in losses_db.items() if loss_db > most_db
        }
        if wrong:
            each = "; ".join(
                f"{c} had {loss_db:.1f} dB of loss"
                for c, loss_db in wrong.items()
            )
            raise StepFailed(
                f"{driver.name}: at the factory {each}, expected at most {most_db:.1f} dB"
            )
        if losses_db:
            words += f"; factory losses of its paths are at most {max(losses_db.values()):.1f} dB"
        return words
