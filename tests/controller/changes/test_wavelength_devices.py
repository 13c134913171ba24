"""Changes of the emulated devices of each driver of wavelength switches."""

from pathlib import Path

import pytest

from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.record import Reconfiguration
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.storage.store import Store
from patchlight.testbed.lab.spectrum import SpectrumMap
from patchlight.testbed.labfile.reader import parse_lab
from tests.support.emulated_wss import Bench, emulated_wss

# Its light arrives with the -3 dBm that the emulated devices have at each input.
LAB = parse_lab("""
name: devices
network: 10.0.0.0/24
servers:
  - {name: s1, nics: [{name: nic0, address: 10.0.0.1, transceiver: {channel: 193.1,
      launch_power: -2.7dBm}}]}
  - {name: s2, nics: [{name: nic0, address: 10.0.0.2, transceiver: {channel: 193.2}}]}
wavelength_switches: [{name: wss1, inputs: 1, outputs: 4}]
fibres: [s1.nic0 - wss1.1, s2.nic0 - wss1.4]
""")
BESIDE = "1>3@192.700"
BEFORE = "1>2@193.100"
AFTER = "1>4@193.100"


async def led_elsewhere(bench: Bench, store: Store) -> Reconfiguration:
    lab = LAB.with_changes(wavelength_switches=(bench.switch,))
    transactions = Transactions(
        CircuitParts(lab, {"wss1": bench.driver}, store)
    )
    wanted = SpectrumMap.parse([AFTER])
    return await transactions.change(
        lambda maps: {"wss1": maps["wss1"].joined(wanted)}, "test"
    )


@pytest.mark.parametrize("name", ["waveshaper-http", "lumentum-netconf"])
async def test_one_channel_goes_elsewhere_and_the_light_of_others_stays(
    name: str, tmp_path: Path
) -> None:
    async with emulated_wss(
        name, BESIDE, BEFORE, inputs=1, outputs=4
    ) as bench:
        record = await led_elsewhere(bench, Store(tmp_path / "controller.db"))
        assert record.state == "committed", record.message
        assert bench.device.matrix.lit == SpectrumMap.parse([BESIDE, AFTER])
        assert all(
            SpectrumMap.parse([BESIDE]).diff(lit).breaks == ()
            for lit in bench.recorder.shown
        )
        unmonitored = "unverified, it has no power monitor" in "".join(
            record.notes
        )
        assert unmonitored == (name == "waveshaper-http"), record.notes


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("waveshaper-http", {"cut": "after"}),
        ("lumentum-netconf", {"drift_db": {"4": 10.0}}),
    ],
)
async def test_what_goes_wrong_is_undone_and_the_light_of_others_stays(
    name: str, fault: dict[str, object], tmp_path: Path
) -> None:
    async with emulated_wss(
        name, BESIDE, BEFORE, inputs=1, outputs=4
    ) as bench:
        await bench.fault(**fault)
        record = await led_elsewhere(bench, Store(tmp_path / "controller.db"))
        assert record.state == "rolled-back", record
        assert bench.device.matrix.lit == SpectrumMap.parse([BESIDE, BEFORE])
        assert all(
            SpectrumMap.parse([BESIDE]).diff(lit).breaks == ()
            for lit in bench.recorder.shown
        )
