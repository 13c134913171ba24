"""Learned policies: ONNX files with cards, and what is refused. No PyTorch is needed here."""

import hashlib
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patchlight.controller.policies.contract import (
    PartitionPolicy,
    PlacedDegree,
    kind_of,
)
from patchlight.controller.policies.degrees import Constant
from patchlight.controller.policies.files import (
    CardError,
    shipped_models,
    weighs_options,
)
from patchlight.controller.policies.learned import Card, load_learned
from patchlight.controller.policies.observation import SCHEMA, VERSION
from patchlight.controller.policies.registry import load_policy
from patchlight.emulation.simulator.ramp.lossnetwork import (
    Episode,
    JobOutcome,
    run_episode,
)
from patchlight.emulation.simulator.ramp.scenario import (
    FixedArrivals,
    pac_ml_scenario,
)
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import builtin_graph

onnx = pytest.importorskip(
    "onnx", reason="onnx is not installed: extra 'learn'"
)

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

FLOAT = TensorProto.FLOAT
DOUBLE = TensorProto.DOUBLE


def model(
    servers: int = 32,
    actions: int = 7,
    name: str = "remaining",
    kind: int = FLOAT,
    output: str = "scores",
    scale: float | list[float] = 1.0,
) -> bytes:
    """Scores each option by how long the cluster is then busy: the busier the better."""
    nodes = [
        helper.make_node("Mul", [name, "scale"], ["scaled"]),
        helper.make_node(
            "ReduceSum", ["scaled", "axes"], [output], keepdims=0
        ),
    ]
    scales = np.array(scale, np.float64 if kind == DOUBLE else np.float32)
    axes = numpy_helper.from_array(np.array([2], np.int64), "axes")
    constants = [axes, numpy_helper.from_array(scales, "scale")]
    inputs = [helper.make_tensor_value_info(name, kind, [1, actions, servers])]
    outputs = [helper.make_tensor_value_info(output, kind, [1, actions])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)]
    )
    made.ir_version = 8
    return bytes(made.SerializeToString())


def write(folder: Path, content: bytes | None = None, **changes: Any) -> Path:
    content = model() if content is None else content
    path = folder / "m.onnx"
    path.write_bytes(content)
    actions = (0, 1, 2, 4, 6, 8, 16)
    sha256 = hashlib.sha256(content).hexdigest()
    seen = (SCHEMA, VERSION, actions, (4, 4, 2))
    card = json.loads(
        Card("m", "partition", *seen, "ramp-first-fit", "0", sha256).written()
    )
    path.with_suffix(".json").write_text(json.dumps(card | changes))
    return path


@pytest.fixture(scope="module")
def workloads() -> Workloads:
    return Workloads([builtin_graph("alexnet"), builtin_graph("resnet18")])


def test_a_model_decides_by_its_best_score(
    tmp_path: Path, workloads: Workloads
) -> None:
    policy: PartitionPolicy = load_learned(write(tmp_path))
    assert kind_of(policy) == "partition"
    episode = Episode(pac_ml_scenario(workloads, "D"), 3)
    question = episode.question()
    lasting = {
        d: d * s
        for d, s in question.job.expected_s.items()
        if s <= question.job.limit_s
    }
    # The busiest cluster: servers × time, of the degrees that meet the limit.
    held = {
        d: (question.cluster.preview(question.job, d) or 0).bit_count()
        for d in lasting
    }
    wanted = max(lasting, key=lambda d: held[d] * question.job.expected_s[d])
    assert policy.degree(*question) == wanted


def test_a_model_chooses_among_blocks_those_first_that_harm_least(
    tmp_path: Path, workloads: Workloads
) -> None:
    worths = [0.5, 3.0, 2.0, 1.0, *[0.0] * 28]  # of servers that are busy
    path = write(tmp_path, model(scale=worths), placement_rule="ramp-block")
    question = Episode(
        pac_ml_scenario(workloads, "D", "ramp-block"), 3
    ).question()
    # The last one takes servers of both others away.
    blocks = [0b11, 0b1100, 0b110]
    cluster = question.cluster._replace(places=lambda job, degree: blocks)

    def chosen(policy: str) -> int | None:
        answer = load_policy(policy, "partition").degree(  # type: ignore[union-attr]
            cluster, question.job, (0, 2)
        )
        assert answer == 2
        return answer.gpus if isinstance(answer, PlacedDegree) else None

    assert [chosen(f"{path}:blocks={n}") for n in (1, 2, 3)] == [
        None,
        0b1100,
        0b110,
    ]
    assert chosen(str(path)) is None
    with pytest.raises(BadInput, match="cannot weigh 0 blocks"):
        load_policy(f"{path}:0", "partition")


def test_a_job_goes_to_the_block_that_was_chosen(
    tmp_path: Path, workloads: Workloads
) -> None:
    path = write(
        tmp_path, model(scale=[*[1.0] * 31, 2.0]), placement_rule="ramp-block"
    )
    policy = load_learned(path).with_parameters(1000)
    episode = Episode(pac_ml_scenario(workloads, "D", "ramp-block"), 3)
    answer = policy.degree(*episode.question())
    assert isinstance(answer, PlacedDegree)
    assert answer.gpus >> 31 == 1
    assert pickle.loads(pickle.dumps(answer)).gpus == answer.gpus
    assert episode.decide(answer) is JobOutcome.ACCEPTED
    assert episode.busy == answer.gpus

    with pytest.raises(BadInput, match="not a block"):
        episode.decide(PlacedDegree(2, 0b11 << 30 | 1))
    with pytest.raises(BadInput, match="no block to choose"):
        Episode(pac_ml_scenario(workloads, "D"), 3).decide(answer)


def test_a_model_is_asked_for_every_job_and_never_answers_what_cannot_be(
    tmp_path: Path, workloads: Workloads
) -> None:
    result = run_episode(
        pac_ml_scenario(workloads, "A", horizon_s=1e5),
        load_learned(write(tmp_path)),
        5,
    )
    assert result.decisions == 100
    assert result.blocked["illegal"] == result.blocked["no_block"] == 0


def test_a_watched_model_gives_way_to_the_best_constant(
    tmp_path: Path, workloads: Workloads
) -> None:
    scenario = pac_ml_scenario(workloads, "C", horizon_s=1.25e5)
    scenario = replace(scenario, arrivals=FixedArrivals(250.0))

    def blocked(policy: PartitionPolicy) -> float:
        return run_episode(scenario, policy, 5).blocking_rate()

    best = min(blocked(Constant(degree)) for degree in (2, 4, 8, 16))
    alone = blocked(load_learned(write(tmp_path)))
    watched = blocked(load_learned(write(tmp_path, most_load=9.0)))
    assert alone > best + 0.1
    assert watched < best + 0.05


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no model at all", "not a valid ONNX model"),
        (pickle.dumps({"a": 1}), "not a valid ONNX model"),
        (model(servers=16), "shape"),
        (model(actions=5), "shape"),
        (model(name="pixels"), "input 'pixels'"),
        (model(name="nodes"), "'nodes'"),
        (model(kind=DOUBLE), "double"),
        (model(output="q"), "expected 'scores'"),
        (model(scale=float("nan")), "no numbers"),
    ],
)
def test_a_file_that_is_no_such_model_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    with pytest.raises(CardError, match=message):
        load_learned(write(tmp_path, content))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sha256": "0" * 64}, "not match its card"),
        (
            {"observation_version": VERSION + 1},
            f"has '{SCHEMA}' version {VERSION}",
        ),
        ({"observation_schema": "pixels"}, "pixels"),
        ({"kind": "placement"}, "expected 'partition'"),
        ({"format": "x"}, "'patchlight-policy'"),
        ({"format_version": 9}, "version is 9"),
        ({"colour": "red"}, "unknown: \\['colour'\\]"),
        ({"actions": [1, 0, 2]}, "ascending"),
        ({"actions": [0, 1, 2, 4, 6, 8, 64]}, "'ramp'"),
        ({"actions": "all"}, "'actions'"),
        ({"ramp": [4, 4]}, "groups, racks and servers"),
        ({"ramp": [8, 4, 2]}, "8×4×2"),
        ({"name": 7}, "'name' is 7"),
    ],
)
def test_a_card_that_does_not_match_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CardError, match=message):
        load_learned(write(tmp_path, **changes))


def test_a_model_without_a_card_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.with_suffix(".json").unlink()
    with pytest.raises(CardError, match="has no card"):
        load_learned(path)


def test_only_onnx_files_are_looked_at(tmp_path: Path) -> None:
    with pytest.raises(CardError, match=r"NAME\.onnx"):
        load_learned(tmp_path / "model.pt")
    with pytest.raises(CardError, match="cannot read"):
        load_learned(tmp_path / "missing.onnx")


def test_a_model_asked_in_another_lab_says_so(tmp_path: Path) -> None:
    from patchlight.emulation.simulator.ramp.ramp import RampShape

    small = Workloads([builtin_graph("alexnet")], RampShape(2, 2, 2))
    episode = Episode(pac_ml_scenario(small, "A"), 0)
    with pytest.raises(BadInput, match="4×4×2"):
        load_learned(write(tmp_path)).degree(*episode.question())


_OF_PARTITION = {
    name: path
    for name, path in shipped_models().items()
    if not weighs_options(path)
}


@pytest.mark.parametrize("name", sorted(_OF_PARTITION))
def test_shipped_models_are_what_their_cards_say(name: str) -> None:
    path = _OF_PARTITION[name]
    card = load_learned(path).card
    networks = len(card.training.get("training_seeds", [0]))
    assert path.stat().st_size <= 700_000 * networks
    assert card.name == name
    assert card.training["steps"] > 0
    assert name.removeprefix("learned").startswith(
        card.placement_rule.removeprefix("ramp")
    )
