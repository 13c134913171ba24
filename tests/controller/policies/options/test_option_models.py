"""Models that weigh options: what is refused, and that one of each kind decides in a lab."""

import math
from pathlib import Path
from typing import Any

import pytest

from patchlight.controller.jobs.cluster_view import WiredLab
from patchlight.controller.policies.contract import (
    KINDS,
    ClusterView,
    ElasticJob,
    Frozen,
    JobView,
    PolicyKind,
    Progress,
    RingOfJob,
    Running,
)
from patchlight.controller.policies.files import CardError
from patchlight.controller.policies.registry import find, load_policy
from patchlight.controller.policies.sets import members
from patchlight.controller.prediction.network import Load, Training
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.generate.generate import tree
from patchlight.testbed.labfile.reader import load_lab

pytest.importorskip("onnx", reason="onnx is not installed: extra 'learn'")

from tests.support.option_models import cheapest_model, write_option_model

LAB = load_lab("ofc2022")
COMPUTE_S = {"Tesla M40": 0.5, "Titan V": 0.2}
JOB = JobView("job", 3, training=Training(100, 500_000_000, COMPUTE_S))


def view(*busy: str, seconds: float = 900.0) -> ClusterView:
    """The lab of OFC 2022 as it is wired at first, one job on these hosts."""
    cluster = WiredLab(LAB, LAB.initial_maps)
    busy = tuple(LAB.host(name).name for name in busy)
    numbers = tuple(cluster.numbers[name] for name in busy)
    found = cluster.view(1000.0, {"other": busy} if busy else {})
    load = Load(seconds, 0.5, 4e9)
    rings = (RingOfJob("other", numbers, load),) if busy else ()
    return found._replace(rings=rings, recent=(JOB,))


@pytest.mark.parametrize(
    ("content", "changes", "message"),
    [
        (b"no model at all", {}, "not a valid ONNX model"),
        (cheapest_model(rows=4), {}, "any number of rows"),
        (cheapest_model(columns=3), {}, "of shape"),
        (cheapest_model(given="pixels"), {}, "input 'pixels'"),
        (
            cheapest_model(given="operations", columns=6),
            {},
            "no input 'options'",
        ),
        (cheapest_model(output="q"), {}, "expected 'scores'"),
        (cheapest_model(factor=math.nan), {}, "no numbers"),
        (None, {"sha256": "0" * 64}, "not match its card"),
        (None, {"observation_version": 2}, "version 2"),
        (None, {"kinds": ["placement", "colour"]}, "'kinds'"),
        (None, {"tested_range": {"gpus": [9, 1]}}, "expected two numbers"),
        (None, {"colour": "red"}, "unknown"),
        (None, {"format_version": 1}, "missing"),
    ],
)
def test_what_is_no_such_model_is_refused(
    tmp_path: Path,
    content: bytes | None,
    changes: dict[str, Any],
    message: str,
) -> None:
    path = write_option_model(tmp_path, content=content, **changes)
    with pytest.raises(CardError, match=message):
        load_policy(str(path), "placement")


def test_a_model_is_of_the_kinds_that_its_card_says(tmp_path: Path) -> None:
    path = write_option_model(tmp_path, ("placement", "topology"))
    assert find(str(path)).kind == "placement"
    assert find(f"topology:{path}").kind == "topology"
    with pytest.raises(BadInput, match="expected order"):
        find(str(path), "order")


def test_circuits_are_not_chosen_where_there_are_none(tmp_path: Path) -> None:
    policy: Any = load_policy(
        str(write_option_model(tmp_path, ("topology",))), "topology"
    )
    lab = tree(8, hosts_per_switch=4)
    with pytest.raises(CardError, match="has no circuit switch"):
        policy.check_fits(WiredLab(lab, {}).shape, lab)
    policy.check_fits(WiredLab(LAB, LAB.initial_maps).shape, LAB)


def test_a_model_of_each_kind_decides_in_a_lab(tmp_path: Path) -> None:
    path = write_option_model(tmp_path, KINDS)

    def decides(kind: PolicyKind) -> Any:
        return load_policy(str(path), kind)

    free = view()
    placement = decides("placement")
    ring = placement.place(free, JOB, 3)
    # It takes as long as with a Titan V among them, which the next job can have now.
    assert {free.shape.gpus[gpu].model for gpu in ring} == {"Tesla M40"}
    assert decides("partition").degree(
        free, JOB._replace(workers=0), (0, 1, 2, 4)
    ) in (1, 2, 4)
    assert math.isfinite(decides("order").priority(free, JOB, Progress()))
    # A job that crosses between the switches all the time: its light is worth moving.
    first, second = (
        next(iter(members(rack))) for rack in free.shape.rack_gpus[:2]
    )
    waits = RingOfJob("job", (first, second), Load(900, 0.1, 4e10), waits=True)
    maps = decides("topology").circuits(
        free._replace(rings=(waits,)), [[first, second]]
    )
    assert maps.keys() == set(LAB.initial_maps)
    running = Running(math.inf, 0b1, "other")
    elastic = ElasticJob(
        "other", 1, Frozen({1: 1.0, 2: 0.4}), left=100.0, cost_s=1.0
    )
    grown = decides("elasticity").resize(
        free._replace(running=(running,)), [elastic], []
    )
    assert grown == {"other": 2}


def test_it_tells_what_it_weighed(tmp_path: Path) -> None:
    policy: Any = load_policy(str(write_option_model(tmp_path)), "placement")
    ring = policy.place(view("gpu0", "gpu3"), JOB._replace(workers=2), 2)
    told = policy.explanation
    assert told["saw"]["gpus"] == 6
    assert told["saw"]["free"] == 4
    scores = [option["score"] for option in told["options"]]
    assert scores == sorted(scores, reverse=True)
    assert [option["chosen"] for option in told["options"]].count(True) == 1
    assert told["options"][0]["chosen"]
    assert len(ring) == 2


def test_scores_that_are_no_numbers_are_an_error(tmp_path: Path) -> None:
    # Too much for a number where two built-in policies agree; when it is loaded, none does.
    content = cheapest_model(features=(17, 18, 19, 20, 21), factor=3e38)
    policy: Any = load_policy(
        str(write_option_model(tmp_path, content=content)), "placement"
    )
    with pytest.raises(PatchlightError, match="for job 'job'"):
        policy.place(view(), JOB, 3)
