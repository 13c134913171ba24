"""A learned policy stands in the experiment's table, for the lab that it was trained for only."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.controller.policies.learned import Card
from patchlight.controller.policies.observation import SCHEMA, VERSION, Layout
from patchlight.emulation.experiments.pac_ml.training_range import outside_training
from patchlight.emulation.experiments.pac_ml.variation import Variation
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs.profiles import SOURCES

onnx = pytest.importorskip("onnx", reason="needs the package onnx, to make a model")

pytestmark = pytest.mark.usefixtures("undrawn")

ACTIONS = (0, 1, 2, 4, 6, 8, 16)


def write_model(
    path: Path, ramp: tuple[int, int, int] = (4, 4, 2), rule: str = "ramp-block"
) -> str:
    """A model that likes the degree best after which servers are busy the shortest in all."""
    shape = Layout(ramp, ACTIONS[1:]).shapes["remaining"]
    make = onnx.helper
    nodes = [
        make.make_node("ReduceSum", ["remaining", "axis"], ["total"], keepdims=0),
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
    content = make.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()
    path.write_bytes(content)
    sha256, notes = hashlib.sha256(content).hexdigest(), "Leaves servers least busy."
    seen = (SCHEMA, VERSION, ACTIONS, ramp)
    card = Card("least", "partition", *seen, rule, "test", sha256, notes)
    path.with_suffix(".json").write_text(card.written())
    return str(path)


@pytest.fixture(autouse=True)
def empty_cache_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)  # Where results go.


def test_it_is_shown_with_its_card(tmp_path: Path) -> None:
    model = write_model(tmp_path / "least.onnx")
    found = json.loads(CliRunner().invoke(cli, ["policy", "show", model, "--json"]).stdout)
    assert found["kind"] == "partition"
    assert found["documentation"] == "Leaves servers least busy."
    assert found["card"]["placement_rule"] == "ramp-block"
    assert found["card"]["ramp"] == [4, 4, 2]
    assert "Leaves servers" in CliRunner().invoke(cli, ["policy", "show", model]).output


def test_it_is_evaluated_and_stands_in_the_table(tmp_path: Path) -> None:
    model, output = write_model(tmp_path / "least.onnx"), tmp_path / "out"
    few = ["--seeds", "1", "--laws", "A", "--processes", "1", "--output", str(output)]
    arguments = ["experiment", "pac-ml", *few, "--policies", "constant-8", "--policy", model]
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
        ((2, 4, 4), "ramp-block", "ramp-block", "was trained for a RAMP of 2×4×4 servers"),
        ((4, 4, 2), "ramp-first-fit", "ramp-block", "was not trained for ramp-block"),
    ],
)
def test_one_for_another_lab_is_refused(
    ramp: tuple[int, int, int], rule: str, asked: str, words: str, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "other.onnx", ramp, rule)
    for command in (
        ["experiment", "pac-ml", "--policy", model, "--rules", asked],
        ["policy", "evaluate", model, "--rule", asked],
    ):
        result = CliRunner().invoke(cli, command)
        assert isinstance(result.exception, BadInput)
        assert words in str(result.exception)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], []),
        (["--law", "B"], []),
        (["--law", "B", "--law-instance", "1"], ["instance 0 of law B, here it is instance 1"]),
        (["--law", "C"], ["trained on laws A, B, not on law C"]),
        (["--arrivals", "fixed:1300"], ["trained on a job every 1000 s"]),
        (["--arrivals", "poisson:1000"], ["trained on a job every 1000 s"]),
        (["--mix", "vgg16=1"], ["trained on all models alike"]),
        (["--failures", "30d:4h"], ["trained on servers that never break"]),
    ],
)
def test_what_a_model_was_not_trained_on_is_said(
    given: list[str], words: list[str], tmp_path: Path
) -> None:
    model = write_model(tmp_path / "least.onnx")
    card = Path(model).with_suffix(".json")
    written = json.loads(card.read_text())
    environment = {"laws": ["A", "B"], "law_instance": 0 if words else None}
    written["training"] = {"config": {"environment": environment}, "models": list(SOURCES)}
    card.write_text(json.dumps(written))
    # A built-in policy beside it is never warned of.
    few = ["--seeds", "1", "--processes", "1", "--output", str(tmp_path / "out"), *given]
    result = CliRunner().invoke(cli, ["policy", "evaluate", model, "constant-8", *few])
    assert result.exit_code == 0, result.output
    learned, constant = json.loads((tmp_path / "out" / "result.json").read_text())["policies"]
    assert constant["outside_training"] == []
    assert len(learned["outside_training"]) == len(words)
    for said, expected in zip(learned["outside_training"], words, strict=True):
        assert expected in said
    assert ("warning: " in result.stderr) == bool(words)


@pytest.mark.parametrize("training", [{}, {"config": 3}, {"config": {"environment": {"laws": 1}}}])
def test_a_card_that_does_not_say_what_it_was_trained_on(
    training: dict[str, object], tmp_path: Path
) -> None:
    model = write_model(tmp_path / "least.onnx")
    card = Path(model).with_suffix(".json")
    card.write_text(json.dumps(json.loads(card.read_text()) | {"training": training}))
    result = CliRunner().invoke(cli, ["policy", "evaluate", model, "--seeds", "1"])
    assert result.exit_code == 0, result.output
    assert "trained on what its card does not say" in result.stderr


@pytest.mark.usefixtures("one_core")
def test_shipped_models_say_what_they_were_trained_on(pipedream: Path) -> None:
    few = ["--rule", "ramp-first-fit", "--seeds", "1", "--law", "A", "--law", "C"]
    few += ["--profiles", str(pipedream)]
    for fixed, said in ((["--law-instance", "0"], ""), ([], "made anew for each episode here")):
        arguments = ["policy", "evaluate", "learned-first-fit", *few, *fixed]
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == 0, result.output
        assert said in result.stderr
        assert bool(result.stderr.strip()) == bool(said)


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    model = Path(write_model(tmp_path / "least.onnx"))
    model.write_bytes(model.read_bytes() + b"\0")
    result = CliRunner().invoke(cli, ["policy", "evaluate", str(model)])
    assert isinstance(result.exception, BadInput)
    assert "not the file that its card was written for" in str(result.exception)


@pytest.mark.parametrize(
    ("varied", "found"),
    [
        ({"arrivals": "fixed:1000"}, []),
        ({"arrivals": "fixed:150", "mix": "gnmt=1"}, []),
        ({"arrivals": "fixed:1400"}, ["trained on fixed:800, fixed:1300, fixed:150 gnmt=1"]),
        ({"arrivals": "poisson:1000"}, ["trained on fixed:800, fixed:1300, fixed:150 gnmt=1"]),
        ({"mix": "vgg16=1"}, ["trained on all models alike"]),
        (
            {"arrivals": "fixed:1", "milliseconds": True},
            [
                "trained on fixed:800, fixed:1300, fixed:150 gnmt=1",
                "trained on milliseconds that count as seconds",
            ],
        ),
    ],
)
def test_loads_between_two_that_a_model_was_trained_on_count_as_met(
    varied: dict[str, Any], found: list[str]
) -> None:
    conditions = ["fixed:800", "fixed:1300", "fixed:150 gnmt=1"]
    training = {"config": {"environment": {"laws": ["A"], "conditions": conditions}}}
    seen = (SCHEMA, VERSION, ACTIONS, (4, 4, 2), "ramp-block", "0", "")
    card = Card("m", "partition", *seen, training=training)
    assert outside_training(card, Variation.parse(**varied), "A", [], published=True) == found
