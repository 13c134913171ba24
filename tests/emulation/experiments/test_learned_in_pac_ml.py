"""A learned policy stands in the experiment's table, for the lab that it was trained for only."""

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.controller.policies.files import MODELS
from patchlight.controller.policies.learned import Card, read_card
from patchlight.controller.policies.observation import (
    SCHEMA,
    VERSION,
    ObservationLayout,
)
from patchlight.emulation.experiments.pac_ml.episodes import decider
from patchlight.emulation.experiments.pac_ml.run import (
    PacMlOptions,
    run_experiment,
)
from patchlight.emulation.experiments.pac_ml.variation import (
    Variation,
    outside_training,
)
from patchlight.emulation.simulator.graphs.profiles import SOURCES
from patchlight.emulation.simulator.ramp.scenario import (
    Job,
    Scenario,
    pac_ml_scenario,
)
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import builtin_graph

onnx = pytest.importorskip(
    "onnx", reason="needs the package onnx, to make a model"
)

pytestmark = pytest.mark.usefixtures("undrawn")

ACTIONS = (0, 1, 2, 4, 6, 8, 16)


def write_model(
    path: Path,
    ramp: tuple[int, int, int] = (4, 4, 2),
    rule: str = "ramp-block",
) -> str:
    """A model that likes the degree best after which servers are busy the shortest in all."""
    shape = ObservationLayout(ramp, ACTIONS[1:]).shapes["remaining"]
    make = onnx.helper
    nodes = [
        make.make_node(
            "ReduceSum", ["remaining", "axis"], ["total"], keepdims=0
        ),
        make.make_node("Neg", ["total"], ["all"]),
        make.make_node("Add", ["all", "refusing"], ["scores"]),
    ]
    inputs = [make.make_tensor_value_info("remaining", 1, [1, *shape])]
    outputs = [make.make_tensor_value_info("scores", 1, [1, len(ACTIONS)])]
    # Refusing leaves servers least busy: it is to be the last choice.
    refusing = make.make_tensor("refusing", 1, [7], [-1e6, 0, 0, 0, 0, 0, 0])
    constants = [make.make_tensor("axis", 7, [1], [2]), refusing]
    graph = make.make_graph(nodes, "least", inputs, outputs, constants)
    opset = make.make_opsetid("", 17)
    content = make.make_model(
        graph, opset_imports=[opset], ir_version=8
    ).SerializeToString()
    path.write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    notes = "Leaves servers least busy."
    seen = (SCHEMA, VERSION, ACTIONS, ramp)
    card = Card("least", "partition", *seen, rule, "test", sha256, notes)
    path.with_suffix(".json").write_text(card.written())
    return str(path)


@pytest.fixture(autouse=True)
def no_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PATCHLIGHT_PROFILES", raising=False)
    monkeypatch.chdir(tmp_path)  # Where results go.


def test_it_is_shown_with_its_card(tmp_path: Path) -> None:
    model = write_model(tmp_path / "least.onnx")
    found = json.loads(
        CliRunner().invoke(cli, ["policy", "show", model, "--json"]).stdout
    )
    assert found["kind"] == "partition"
    assert found["documentation"] == "Leaves servers least busy."
    assert found["card"]["placement_rule"] == "ramp-block"
    assert found["card"]["ramp"] == [4, 4, 2]
    assert (
        "Leaves servers"
        in CliRunner().invoke(cli, ["policy", "show", model]).output
    )


def test_it_is_evaluated_and_stands_in_the_table(tmp_path: Path) -> None:
    model = write_model(tmp_path / "least.onnx")
    output = tmp_path / "out"
    few = [
        "--seeds",
        "1",
        "--laws",
        "A",
        "--processes",
        "1",
        "--output",
        str(output),
    ]
    arguments = [
        "experiment",
        "pac-ml",
        *few,
        "--policies",
        f"constant-8,{model}",
    ]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    rules = json.loads((output / "result.json").read_text())["rules"]
    # Not quick, so there is a bound without foresight; it is 0 for models as light as the built-in.
    for laws in rules.values():
        without_foresight = laws["A"]["online_bound"]["blocking_rate"]
        assert 0 <= without_foresight < laws["A"]["lowest"]["blocking_rate"]
    # Trained for whole blocks, it runs there only.
    assert list(rules["ramp-block"]["A"]["policies"]) == ["constant-8", model]
    assert list(rules["ramp-first-fit"]["A"]["policies"]) == ["constant-8"]
    figures = rules["ramp-block"]["A"]["policies"][model]
    assert figures["faults"]["count"] == 0
    assert 0 < figures["blocking_rate"] < 0.9
    assert figures["causes"]["refused"] < 0.9
    assert figures["decisions_per_s"] > 100


@pytest.mark.parametrize(
    ("ramp", "rule", "asked", "words"),
    [
        (
            (2, 4, 4),
            "ramp-block",
            "ramp-block",
            "was trained for a RAMP of 2×4×4 servers",
        ),
        (
            (4, 4, 2),
            "ramp-first-fit",
            "ramp-block",
            "was not trained for ramp-block",
        ),
    ],
)
def test_one_for_another_lab_is_refused(
    ramp: tuple[int, int, int],
    rule: str,
    asked: str,
    words: str,
    tmp_path: Path,
) -> None:
    model = write_model(tmp_path / "other.onnx", ramp, rule)
    command = ["experiment", "pac-ml", "--policies", model, "--rules", asked]
    result = CliRunner().invoke(cli, command)
    assert isinstance(result.exception, BadInput)
    assert words in str(result.exception)


def test_what_a_model_was_not_trained_on_is_said(tmp_path: Path) -> None:
    model = write_model(tmp_path / "least.onnx")
    card = Path(model).with_suffix(".json")
    environment = {"laws": ["A", "B"], "law_instance": 0}
    training = {
        "config": {"environment": environment},
        "models": list(SOURCES),
    }
    card.write_text(
        json.dumps(json.loads(card.read_text()) | {"training": training})
    )
    # A built-in policy beside it is never warned of.
    few = [
        "--seeds",
        "1",
        "--processes",
        "1",
        "--output",
        str(tmp_path / "out"),
    ]
    few += [
        "--laws",
        "A,C",
        "--failures",
        "30d:4h",
        "--policies",
        f"{model},constant-8",
    ]
    result = CliRunner().invoke(cli, ["experiment", "pac-ml", *few])
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "out" / "result.json").read_text())[
        "outside_training"
    ]
    never = "trained on servers that never fail"
    assert found == {model: [never, "trained on laws A, B, not on law C"]}
    warned = " ".join(result.stderr.split())
    assert "warning: " in warned
    assert never in warned
    assert "not on law C" in warned
    assert "constant-8" not in warned


def card_of(training: object) -> Card:
    seen = (SCHEMA, VERSION, ACTIONS, (4, 4, 2), "ramp-block", "0", "")
    return Card(
        "m", "partition", *seen, training=cast(dict[str, Any], training)
    )


@pytest.mark.parametrize(
    ("law", "varied", "words"),
    [
        ("A", {}, []),
        ("B", {"law_instance": 0}, []),
        (
            "B",
            {"law_instance": 1},
            ["trained on instance 0 of law B, here it is instance 1"],
        ),
        (
            "B",
            {},
            ["trained on instance 0 of law B, new in each episode here"],
        ),
        ("C", {}, ["trained on laws A, B, not on law C"]),
        ("A", {"arrivals": "fixed:1300"}, ["trained on a job every 1000 s"]),
        ("A", {"arrivals": "poisson:1000"}, ["trained on a job every 1000 s"]),
        ("A", {"mix": "vgg16=1"}, ["trained on equal shares of models"]),
        ("A", {"failures": "30d:4h"}, ["trained on servers that never fail"]),
    ],
)
def test_what_lies_outside_of_the_training(
    law: str, varied: dict[str, Any], words: list[str]
) -> None:
    environment = {"laws": ["A", "B"], "law_instance": 0}
    card = card_of(
        {"config": {"environment": environment}, "models": list(SOURCES)}
    )
    instance = varied.pop("law_instance", None)
    variation = replace(Variation.parse(**varied), law_instance=instance)
    assert (
        outside_training(card, variation, law, list(SOURCES), published=False)
        == words
    )


@pytest.mark.parametrize(
    "training", [{}, {"config": 3}, {"config": {"environment": {"laws": 1}}}]
)
def test_a_card_that_does_not_say_what_it_was_trained_on(
    training: dict[str, object], tmp_path: Path
) -> None:
    path = Path(write_model(tmp_path / "least.onnx")).with_suffix(".json")
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"training": training})
    )
    told = outside_training(
        read_card(path), Variation(), "A", [], published=False
    )
    assert told == ["trained on conditions that its card lacks"]


@pytest.mark.usefixtures("one_core")
def test_shipped_models_say_what_they_were_trained_on(pipedream: Path) -> None:
    card = read_card(MODELS / "learned-first-fit-inexact.json")
    for law in "AC":
        assert (
            outside_training(
                card, Variation(), law, list(SOURCES), published=True
            )
            == []
        )
    arguments = [
        "--rules",
        "ramp-first-fit",
        "--seeds",
        "1",
        "--laws",
        "C",
        "--quick",
    ]
    arguments += ["--policies", "learned-first-fit-inexact"]
    arguments += ["--arrivals", "fixed:800"]
    arguments += ["--profiles", str(pipedream)]
    result = CliRunner().invoke(cli, ["experiment", "pac-ml", *arguments])
    assert result.exit_code == 0, result.output
    assert "trained on fixed:1000" in result.stderr


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    model = Path(write_model(tmp_path / "least.onnx"))
    model.write_bytes(model.read_bytes() + b"\0")
    result = CliRunner().invoke(
        cli, ["experiment", "pac-ml", "--policies", str(model)]
    )
    assert isinstance(result.exception, BadInput)
    assert "not match its card" in str(result.exception)


@pytest.mark.parametrize(
    ("varied", "found"),
    [
        ({"arrivals": "fixed:1000"}, []),
        ({"arrivals": "fixed:150", "mix": "gnmt=1"}, []),
        (
            {"arrivals": "fixed:1400"},
            ["trained on fixed:800, fixed:1300, fixed:150 gnmt=1"],
        ),
        (
            {"arrivals": "poisson:1000"},
            ["trained on fixed:800, fixed:1300, fixed:150 gnmt=1"],
        ),
        ({"mix": "vgg16=1"}, ["trained on equal shares of models"]),
        (
            {"arrivals": "fixed:1", "milliseconds": True},
            [
                "trained on fixed:800, fixed:1300, fixed:150 gnmt=1",
                "trained on milliseconds taken as seconds",
            ],
        ),
    ],
)
def test_loads_between_two_that_a_model_was_trained_on_count_as_met(
    varied: dict[str, Any], found: list[str]
) -> None:
    conditions = ["fixed:800", "fixed:1300", "fixed:150 gnmt=1"]
    card = card_of(
        {"config": {"environment": {"laws": ["A"], "conditions": conditions}}}
    )
    assert (
        outside_training(
            card, Variation.parse(**varied), "A", [], published=True
        )
        == found
    )


ANY = "learned-first-fit-any"


@pytest.mark.parametrize(
    ("law", "varied", "itself"),
    [
        ("B", {}, True),
        (
            "C",
            {"arrivals": "fixed:600", "mix": "resnet18=1,squeezenet1_0=1"},
            False,
        ),
    ],
)
def test_a_constant_degree_decides_where_a_model_is_no_better(
    pipedream: Path, law: str, varied: dict[str, Any], itself: bool
) -> None:
    options = PacMlOptions(
        seeds=2,
        quick=True,
        profiles=pipedream,
        laws=(law,),
        rules=("ramp-first-fit",),
        policies=(
            "constant-2",
            "constant-4",
            "constant-8",
            "constant-16",
            ANY,
        ),
        horizon_s=2e5,
        variation=Variation.parse(**varied),
    )
    cell = run_experiment(options, lambda words: None, lambda done, of: None)
    found = cell["rules"]["ramp-first-fit"][law]
    rates = {
        name: [each["blocking_rate"] for each in figures["episodes"]]
        for name, figures in found["policies"].items()
    }
    decides = found["decided_by"][ANY]
    assert (decides == ANY) is itself
    if itself:
        assert sum(rates[ANY]) < min(
            sum(rates[name]) for name in rates if name != ANY
        )
    else:
        assert rates[ANY] == rates[decides]


@dataclass(frozen=True)
class Watched(Scenario):
    """A scenario that keeps what is drawn from it."""

    drawn: dict[int, list[Job]] = field(default_factory=dict)

    def jobs(self, seed: int) -> list[Job]:
        self.drawn[seed] = super().jobs(seed)
        return self.drawn[seed]


def test_trials_draw_no_job_of_an_episode() -> None:
    graphs = Workloads([builtin_graph(name) for name in ("alexnet", "vgg16")])
    plain = pac_ml_scenario(graphs, "A", horizon_s=2e4)
    watched = Watched(plain.workloads, plain.law, plain.rule, plain.horizon_s)
    decider(ANY, watched, 1)
    assert watched.drawn
    for seed, jobs in watched.drawn.items():
        needs = [job.requirement for job in jobs]
        assert [job.requirement for job in plain.jobs(seed)] != needs
