"""``patchlight experiment architectures``: the same jobs on each network, and the price list."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.emulation.experiments.architectures.run import (
    BUILT_IN,
    MIXTURE,
    MODELS,
    NETWORKS,
    mixed_jobs,
    read_prices,
    totals,
)
from patchlight.emulation.simulator.network.specs import network_of
from patchlight.testbed.errors import BadInput
from tests.support.figures import for_a_paper

# Loops are compiled once, where nothing is on the disk yet.
pytestmark = pytest.mark.xdist_group("networks")


def test_the_command_writes_figures_of_each_network(tmp_path: Path) -> None:
    given = [
        "experiment",
        "architectures",
        "--jobs",
        "6",
        "--output",
        str(tmp_path),
        "--json",
    ]
    specs = (
        "fat-tree:k=4,taper=4",
        "ideal:nodes=16",
        "oddl:nodes=16,switching=1ms",
    )
    done = CliRunner().invoke(
        cli, [*given, *[w for spec in specs for w in ("--network", spec)]]
    )
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "result.json").read_text())
    assert result == json.loads(done.stdout)
    assert result["experiment"] == "architectures"
    tapered, ideal, oddl = (result["networks"][spec] for spec in specs)
    assert ideal["iteration_to_ideal"] == pytest.approx(1.0)
    assert tapered["iteration_to_ideal"] > 1.0
    least_w, most_w = tapered["power_w"]
    assert 0 < least_w < most_w
    assert not tapered["power_unknown"]
    assert "tunable-transceiver-100g" in oddl["power_unknown"]
    least_usd, most_usd = tapered["cost_usd"]
    assert 0 < least_usd < most_usd
    assert not tapered["cost_unknown"]
    assert "tunable-transceiver-100g" in oddl["cost_unknown"]
    assert tapered["link_use_max"] > tapered["link_use_mean"] > 0
    assert oddl["dark_s"] > ideal["dark_s"] == 0
    assert oddl["iteration_to_ideal"] > 1.0
    assert (tmp_path / "architectures.pdf").stat().st_size > 0
    # A panel where all parts of a network have a price.
    text = for_a_paper(tmp_path / "architectures.svg")
    assert "iteration time / ideal switch" in text
    assert "cost" in text
    assert "power" in text


def test_the_jobs_are_alike_for_a_seed_and_of_every_model() -> None:
    jobs = mixed_jobs(10, 128, 1, (*MODELS, MIXTURE))
    assert jobs == mixed_jobs(10, 128, 1, (*MODELS, MIXTURE))
    assert {job.cluster for job in jobs} == {*MODELS, MIXTURE}
    assert all(2 <= job.view.workers <= 32 for job in jobs)


def test_the_built_in_list_has_a_figure_with_a_source_or_a_reason_for_every_part() -> (
    None
):
    prices = read_prices()
    for spec in NETWORKS:
        for total in totals(network_of(spec).parts, prices):
            assert total.known or total.unknown
    for price in prices.values():
        for figure in (price.usd, price.watts):
            assert (
                price.source if isinstance(figure, tuple) else len(figure) > 3
            )


def test_what_nobody_knows_is_left_out_and_said(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    given = {
        "nic-100g": {"usd": [10, 12], "watts": "– secret", "source": "x"},
        "ocs-port": {"usd": 5, "watts": "- sealed", "source": "x"},
        "transceiver-100g": {"usd": "– by offer", "watts": 2, "source": "x"},
    }
    file.write_text(yaml.safe_dump(given))
    usd, watts = totals(dict.fromkeys(given, 4.0), read_prices(file))
    assert usd == ((60.0, 68.0), {"transceiver-100g": "– by offer"})
    assert watts == (
        (8.0, 8.0),
        {"nic-100g": "– secret", "ocs-port": "- sealed"},
    )
    assert totals({"ocs-port": 1.0}, read_prices(file))[1].known is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"ocs-port": {"usd": "dear", "watts": 1, "source": "x"}},
            "ocs-port: usd: 'dear'",
        ),
        (
            {"ocs-port": {"usd": [2, 1], "watts": 1, "source": "x"}},
            "two of them as a range",
        ),
        (
            {"ocs-port": {"usd": 1, "watts": -1, "source": "x"}},
            "ocs-port: watts: -1",
        ),
        (
            {"ocs-port": {"usd": 1, "watts": "–", "source": "x"}},
            "a dash and the reason",
        ),
        ({"ocs-port": {"usd": 1}}, "ocs-port: expected usd, watts and source"),
        ("text", "is not a price list"),
    ],
)
def test_a_price_list_with_mistakes_is_refused(
    tmp_path: Path, change: object, said: str
) -> None:
    file = tmp_path / "prices.yaml"
    given = yaml.safe_load(BUILT_IN.read_text())
    file.write_text(
        yaml.safe_dump(
            {**given, **change} if isinstance(change, dict) else change
        )
    )
    with pytest.raises(BadInput, match=said):
        read_prices(file)


def test_a_part_without_a_price_is_named() -> None:
    with pytest.raises(BadInput, match="no ocs-port"):
        totals({"ocs-port": 3.0}, {})
