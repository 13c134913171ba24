"""ODDL in packets: what is run, what comes of measurements, and a small run with a real lab."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.emulation.experiments.oddl.packets.isolation import (
    Pairs,
    change_in,
)
from patchlight.emulation.experiments.oddl.packets.run import (
    PacketOptions,
    light_lab,
    switch_lab,
)
from patchlight.testbed.errors import BadInput
from tests.support.figures import for_a_paper


def test_both_labs_have_the_same_hosts_and_rates() -> None:
    lit = light_lab(0.004)
    switched = switch_lab()
    hosts = [
        [
            (host.name, host.nic.address, host.nic.rate_bps)
            for host in lab.hosts
        ]
        for lab in (lit, switched)
    ]
    assert hosts[0] == hosts[1]
    transceivers = [host.nic.transceiver for host in lit.hosts]
    assert [each.tuning_time_s for each in transceivers if each] == [0.004] * 4


def test_times_stay_as_they_are_but_for_the_slowdown() -> None:
    loads = [
        PacketOptions(slowdown=slowdown).load() for slowdown in (1.0, 4.0)
    ]
    assert loads[1].gradient_bytes == loads[0].gradient_bytes
    assert loads[1].compute_s == pytest.approx(4 * loads[0].compute_s)
    # 2 (n − 1)/n of 575 MB at 100 Gb/s.
    assert [load.sends_s for load in loads] == pytest.approx(
        [0.06896, 4 * 0.06896], rel=1e-3
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tuning_times_s": ()}, "at least one"),
        ({"tuning_times_s": (0.0,)}, "more than 0"),
    ],
)
def test_what_cannot_be_run_is_said_before(
    options: dict[str, object], words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        PacketOptions(**options)  # type: ignore[arg-type]


def test_a_change_is_that_of_pairs_with_its_interval() -> None:
    # Something else fell on both of the second pair.
    quiet_s = [
        1.0,
        2.0,
        1.0,
        1.0,
        1.0,
        1.0,
    ]
    found = change_in(
        Pairs(
            quiet_s,
            [each * (1.001 + 0.001 * n) for n, each in enumerate(quiet_s)],
        )
    )
    assert found["iteration_change"] == pytest.approx(0.0035)
    assert found["iteration_change_interval"] == pytest.approx([0.001, 0.006])
    # Of twelve values, the third and the tenth.
    found = change_in(Pairs([1.0] * 12, [1 + n / 100 for n in range(12)]))
    assert found["iteration_change_interval"] == pytest.approx([0.02, 0.09])


@pytest.mark.root
def test_four_nodes_train_over_light_and_over_a_switch(tmp_path: Path) -> None:
    words = [
        "--model",
        "resnet50",
        "--iterations",
        "2",
        "--quick",
        "--tuning-time",
        "1ms",
    ]
    words += ["--slowdown", "1", "--json"]
    result = CliRunner().invoke(
        cli,
        [
            "experiment",
            "oddl",
            "--scale",
            "4000",
            *words,
            "--output",
            str(tmp_path / "out"),
        ],
    )
    assert result.exception is None, result.output
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (
        found["training_time_ratio_to_ideal"]
        == found["training_time_ratios"]["kept"]
    )
    assert list(found["stages"]["ideal"]) == ["compute", "send"]
    for arm in ("kept", "turned"):
        stages = ["compute", "ask", "tune", "send", "acknowledge", "release"]
        assert list(found["stages"][arm]) == stages
    # In no iteration of the ring that was turned, a transmitter was lit before it was tuned.
    assert found["stages"]["turned"]["tune"]["median_s"] >= 1e-3
    (row,) = found["sweep"]
    assert row["frames_lost"]["destroyed"] == 0
    # The same flood arrives at the neighbour only where wavelength switches let it in.
    isolation = found["isolation"]
    assert isolation["together"]["frames_at_neighbour"] > 0
    for way in ("star", "channels"):
        assert isolation[way]["frames_at_neighbour"] == 0
        assert isolation[way]["frames_at_flooding_job"] > 0
        assert len(isolation[way]["flooded_iterations_s"]) == 6
    for plot in ("tuning-time", "stages", "isolation"):
        for_a_paper(tmp_path / "out" / f"{plot}.svg")
