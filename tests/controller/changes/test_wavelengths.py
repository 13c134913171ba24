"""Changes of wavelength switches are the same transactions: the old maps or the new, known."""

from dataclasses import replace
from pathlib import Path

import pytest

from patchlight.controller.changes.device_watch import power_report
from patchlight.controller.changes.record import ChangeOptions, fingerprint
from patchlight.controller.changes.wanted import undoing
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.spectrum import Channel, SpectrumMap
from patchlight.testbed.lab.wiring import Place
from patchlight.testbed.wire.rest.requests import PresentMapsRequest
from tests.support.wss_bench import LAB, LOCAL, START, MeasuredWss, WssBench


@pytest.fixture
def bench(tmp_path: Path) -> WssBench:
    return WssBench(tmp_path)


async def test_a_change_follows_light_by_channel_and_touches_no_other(
    bench: WssBench,
) -> None:
    record = await bench.join(wss1=["2>4@193.150"])
    assert (record.state, record.message) == ("committed", "done")
    assert record.changes == {
        "wss1": {"breaks": ["2>3@193.150"], "makes": ["2>4@193.150"]}
    }
    assert bench.told == ["wss1 - 2>3@193.150", "wss1 + 2>4@193.150"]
    assert bench.maps()["wss2"] == START["wss2"]
    # server2's light no longer comes to server4; that of the others stays.
    assert bench.network.moved == [{"server2.nic0"}]
    assert [len(links.pairs()) for links in bench.network.links] == [1, 1]
    assert "unverified, no power monitor" in "".join(record.notes)


async def test_jobs_on_light_that_moves_are_spared_and_others_go_on(
    bench: WssBench,
) -> None:
    bench.network.jobs = {"server4.nic0": "train-1"}
    spare = ChangeOptions(spare_jobs=True)
    weaker = SpectrumMap.parse(["3>2@193.150-2dB"])
    refused = await bench.change(
        lambda m: {"wss2": m["wss2"].joined(weaker)}, "test", spare
    )
    # That light goes to server4: it is server2's.
    assert refused.state == "committed"
    assert bench.network.moved == [{"server2.nic0"}]
    weaker = SpectrumMap.parse(["2>3@193.150-2dB"])
    refused = await bench.change(
        lambda m: {"wss2": m["wss2"].joined(weaker)}, "test", spare
    )
    assert refused.state == "refused"
    assert "traffic of train-1 uses these circuits" in refused.message


async def test_two_signals_that_would_meet_anywhere_are_refused_by_name(
    bench: WssBench,
) -> None:
    assert (await bench.join(wss1=["1>4@193.100"])).state == "committed"
    told = list(bench.told)
    refused = await bench.join(wss2=["1>4@193.100"])
    assert refused.state == "refused"
    assert (
        "two signals of one channel meet on the fibre at star.3, server1.nic0 (193.100) and "
        "server3.nic0 (193.100)"
    ) in refused.message
    assert bench.told == told, "nothing was written"
    # In one change they take turns, and all that goes has gone before anything comes.
    turned = await bench.join(wss1=["1>3@193.100"], wss2=["1>4@193.100"])
    assert turned.state == "committed", turned.message
    signs = [line.split()[1] for line in bench.told[len(told) :]]
    assert signs == sorted(signs, key="-+".index)


async def test_channels_of_a_port_are_locked_alone_and_with_it(
    bench: WssBench, tmp_path: Path
) -> None:
    locks = bench.parts.locks
    here = Place(3, Channel.parse("193.150"))
    locks.lock("wss1", [here], "locked", "eva", "measuring")
    refused = await bench.join(wss1=["2>4@193.150"])
    assert "wss1.3@193.150 is locked by eva: measuring" in refused.message
    assert (await bench.join(wss1=["1>4@193.100"])).state == "committed"
    # Another controller on the same state finds it.
    assert [lock.place for lock in WssBench(tmp_path).parts.locks.all()] == [
        here
    ]
    locks.unlock("wss1", [here], "eva", "")
    locks.lock("wss1", [2], "locked", "eva", "cleaning")
    assert (await bench.join(wss1=["2>4@193.150"])).state == "refused"
    with pytest.raises(BadInput, match="ports 1–4"):
        locks.lock("wss1", [5], "locked", "eva", "?")
    both = locks.lock(
        "wss1", [here, 3], "locked", "eva", "a port and a channel of it"
    )
    assert [lock.place for lock in both] == [Place(3), here]
    with pytest.raises(BadInput, match="off the grid"):
        locks.lock(
            "wss1", [Place(1, Channel.parse("193.125"))], "locked", "eva", "?"
        )


async def test_drift_undoing_and_saved_maps_speak_of_channels(
    bench: WssBench, tmp_path: Path
) -> None:
    bench.parts.committed.begin_with(await bench.parts.maps.read())
    await bench.devices["wss1"].connect([*SpectrumMap.parse(["2>4@193.200"])])
    drift = (await bench.service.drift()).drift["wss1"]
    assert (drift.missing, drift.unknown) == ([], ["2>4@193.200"])
    await bench.service.save(
        "monday", PresentMapsRequest(), ChangeOptions(by="eva")
    )
    cleared = await bench.change(
        lambda _: dict.fromkeys(START, SpectrumMap()), "clear"
    )
    assert cleared.state == "committed"
    # A switch that has nothing is still one of channels to who reads its map later.
    later = WssBench(tmp_path)
    assert later.parts.committed.maps == dict.fromkeys(START, SpectrumMap())
    assert not any((await later.transactions.drift()).values())
    decide, adopts = undoing(later.parts, cleared.id)
    assert (
        await later.change(decide, "undo", ChangeOptions(adopts=adopts))
    ).state == "committed"
    assert later.maps()["wss2"] == START["wss2"]
    (saved,) = (await later.service.saved_maps()).maps
    assert {
        n: SpectrumMap.parse(texts) for n, texts in saved.maps.items()
    } == later.maps()


async def test_what_was_shown_must_still_be_true_of_channels(
    bench: WssBench,
) -> None:
    plan, _ = await bench.transactions.preview(lambda _: {"wss1": LOCAL})
    await bench.devices["wss2"].connect([*SpectrumMap.parse(["1>4@193.250"])])
    options = ChangeOptions(planned_from=fingerprint(plan.before))
    record = await bench.change(lambda _: {"wss1": LOCAL}, "test", options)
    assert record.state == "refused"
    assert "changed since the preview" in record.message


async def test_a_map_of_the_other_kind_or_off_the_grid_is_bad_input(
    bench: WssBench,
) -> None:
    with pytest.raises(BadInput, match="the map of wss1 is a SpectrumMap"):
        await bench.change(lambda _: {"wss1": PortMap.of([(1, 2)])}, "test")
    with pytest.raises(BadInput, match=r"193\.125 is off the grid"):
        await bench.join(wss1=["1>2@193.125"])
    assert not bench.told


async def test_each_channel_is_judged_by_its_own_power(tmp_path: Path) -> None:
    bench = WssBench(tmp_path, MeasuredWss)
    device = bench.devices["wss1"]
    assert isinstance(device, MeasuredWss)
    # 0 dBm, less 0.3 dB of fibre, 5 dB of the switch and 2 dB that the entry takes off.
    device.dbm = {"1>2@193.100-2dB": -7.4, "2>1@193.150": -5.2}
    wanted = {"wss1": SpectrumMap.parse(["1>2@193.100-2dB", "2>1@193.150"])}
    good = await bench.change(lambda _: wanted, "test")
    assert good.state == "committed", good
    assert [note for note in good.notes if "no link" not in note] == []
    (first, second) = (
        await power_report(bench.parts, "wss1", await bench.parts.maps.read())
    ).readings
    assert (first.out_dbm, first.baseline_dbm, first.verdict.kind) == (
        -7.4,
        -7.4,
        "ok",
    )
    assert first.expected is not None
    assert first.expected.power_dbm == pytest.approx(-7.3)
    assert str(second.source) == "server2.nic0"
    # The other's light does not make up for one that is missing.
    device.dbm = {"1>4@193.100": -5.3}
    dark = await bench.join(wss1=["1>4@193.100", "2>3@193.150"])
    assert dark.state == "rolled-back"
    assert "2>3@193.150: no power at out:3" in dark.message


async def test_a_switch_without_a_driver_is_as_the_lab_file_says(
    tmp_path: Path,
) -> None:
    first, second = LAB.wavelength_switches
    fixed = replace(second, driver="", address="")
    bench = WssBench(
        tmp_path, lab=LAB.with_changes(wavelength_switches=(first, fixed))
    )
    links = bench.parts.maps.links(await bench.parts.maps.read())
    assert len(links.pairs()) == 2
    with pytest.raises(BadInput, match="wss2 has no driver in the lab file"):
        await bench.join(wss2=["1>4@193.250"])
    assert (
        await bench.change(lambda maps: maps, "all as it is")
    ).state == "committed"
    assert (await bench.join(wss1=["1>4@193.100"])).state == "committed"
