"""The picture of a lab, and what stands beside it, out of what a controller says."""

import json
from pathlib import Path
from typing import Any

import pytest

from patchlight.cli.dashboard import charts, dashboard
from patchlight.cli.dashboard.auth import TurnedAway, Visitors
from patchlight.cli.dashboard.lab_view import JOB_COLOURS, LabView, job_colours
from patchlight.cli.dashboard.picture import Measured, Picture, Shapes
from patchlight.cli.dashboard.texts import (
    change_row,
    circuit_row,
    device_rows,
    job_row,
    last_change_lines,
    worries,
)
from patchlight.client.client import ControllerClient
from patchlight.testbed.draw.drawing_layout import DrawingLayout
from patchlight.testbed.errors import BadInput
from patchlight.testbed.generate.generate import two_tors
from patchlight.testbed.labfile.reader import builtin_lab, read_lab

LAB = read_lab(builtin_lab("ofc2022"))
MAPS = {ocs: {"map": [str(c) for c in m]} for ocs, m in LAB.initial_maps.items()}
JOB: dict[str, Any] = {
    "id": "job-1",
    "spec": {"name": "trains", "iterations": 10},
    "state": "running",
    "message": "",
    "by": "eva",
    "hosts": ["server1.gpu0", "server1.gpu1"],
    "iterations_done": 3,
    "submitted_at": 100.0,
    "runs_since": 101.0,
    "started_at": 101.0,
    "finished_at": None,
    "predicted_iteration_s": 0.25,
}
CHANGE: dict[str, Any] = {
    "id": 7,
    "state": "committed",
    "why": "regroup",
    "by": "eva",
    "message": "done",
    "started_at": 200.0,
    "finished_at": 200.5,
    "changes": {"ocs1": {"breaks": ["3>15"], "makes": ["3>9"]}},
    "stages_s": {"plan": 0.1, "break": 0.01, "make": 0.02, "verify": 0.03},
}


def view(**said: Any) -> LabView:
    known = {"maps": MAPS, "jobs": [JOB], "colours": {"job-1": JOB_COLOURS[1]}}
    return LabView(LAB, **(known | said))


def described(layer: Shapes, kind: str) -> dict[str, str]:
    """What is said of each thing of that kind in a picture: the text of its title."""
    found = {}
    for _, attributes, inside in layer.values():
        if name := attributes.get(f"data-{kind}"):
            title = inside[0]
            assert title[0] == "title"
            found[str(name)] = str(title[2])
    return found


def test_light_has_the_colour_of_its_job() -> None:
    shown = view()
    of_job = {str(c.ports) for c in shown.circuits if c.job == "job-1"}
    assert of_job == {"1>7", "7>1", "2>8", "8>2"}
    light = Picture(LAB, DrawingLayout(LAB)).light(shown)
    assert (
        json.dumps(light).count(f'"stroke": "{JOB_COLOURS[1]}"') == 2 + 2 * 2
    )  # circuits, and fibres to both sides
    said = described(light, "circuit")
    assert said["ocs1 1>7"].startswith("ocs1 1>7: well, server1.nic0 to tor1.1, 40Gbps")
    assert len(said) == 6


@pytest.mark.parametrize(
    ("said", "condition", "words"),
    [
        ({"locks": [{"ocs": "ocs1", "port": 7, "by": "bo", "why": ""}]}, "locked", "by bo"),
        ({"drift": {"ocs1": {"missing": [], "unknown": ["1>7"]}}}, "drifting", "nobody"),
        ({"drift": {"ocs1": {"missing": ["9>10"], "unknown": []}}}, "dark", "not on the device"),
        ({"changes": [{**CHANGE, "state": "intent"}]}, "changing", "being changed"),
        (
            {
                "light": {
                    "ocs1": {
                        "circuits": [
                            {"cross_connect": "1>7", "verdict": "failed", "words": "no light"}
                        ]
                    }
                }
            },
            "dark",
            "no light",
        ),
        (
            {
                "light": {
                    "ocs1": {
                        "circuits": [
                            {"cross_connect": "1>7", "verdict": "degraded", "words": "3 dB less"}
                        ]
                    }
                }
            },
            "degraded",
            "3 dB less",
        ),
    ],
)
def test_what_is_not_well_is_seen(said: dict[str, Any], condition: str, words: str) -> None:
    shown = view(**said)
    found = [c for c in shown.circuits if c.condition == condition]
    assert found
    assert all(words in c.words for c in found)
    assert f"pl-{condition}" in json.dumps(Picture(LAB, DrawingLayout(LAB)).light(shown))
    if condition not in ("locked", "changing"):
        assert any(line.startswith(f"{condition}: ocs1 ") for line in worries(shown, None, ""))


def test_a_switch_that_does_not_answer_is_shown_as_last_known() -> None:
    maps = {"ocs1": {"map": None, "unreachable": "timed out", "assumed": ["1>7", "7>1"]}}
    status = {"circuit_switches": [{"name": "ocs1", "reachable": False, "words": "timed out"}]}
    shown = view(maps=maps, status=status)
    assert [c.words for c in shown.circuits] == ["as last known: timed out"] * 2
    assert "pl-bad" in json.dumps(Picture(LAB, DrawingLayout(LAB)).light(shown))
    assert worries(shown, None, "no answer")[:2] == ["no answer", "ocs1 does not answer: timed out"]


def test_what_users_write_is_text() -> None:
    bad = '"><script>alert(1)</script>'
    shown = view(locks=[{"ocs": "ocs1", "port": 1, "by": bad, "why": bad}])
    light = Picture(LAB, DrawingLayout(LAB)).light(shown)
    assert bad in described(light, "circuit")["ocs1 1>7"]
    meters = Picture(LAB, DrawingLayout(LAB)).meters(shown, {"server1.gpu0": Measured(1e9, 0.5)})
    assert described(meters, "host")["server1.gpu0"] == (
        "server1.gpu0: in job-1, busy 50%, nic0 sends 1Gbps"
    )


def test_a_job_keeps_its_colour() -> None:
    first = job_colours({}, ["a", "b"])
    assert first["a"] != first["b"]
    later = job_colours(first, ["b", "c"])
    assert later["b"] == first["b"] != later["c"]
    assert len(set(job_colours({}, [str(n) for n in range(6)]).values())) == 6


def test_rows_say_what_was_measured_beside_what_was_predicted() -> None:
    row = job_row(JOB, view(), 0.3, 2e9)
    assert (row["iteration"], row["predicted"], row["sends"]) == ("300ms", "250ms", "2Gbps")
    assert row["done"] == "3 of 10"
    shown = change_row(CHANGE)
    assert (shown["took"], shown["dark"], shown["can_undo"]) == ("500ms", "60ms", True)
    assert shown["changes"] == "ocs1: −3>15 +3>9"
    lines = last_change_lines(view(changes=[CHANGE]), 230.5)
    assert lines[0] == "change 7: committed 30 s ago by eva"
    assert "light was away 60ms" in lines[2]
    assert [r["light"] for r in device_rows(view(), "tor1")][:2] == [
        "lit to server1.nic0",
        "lit to server1.nic1",
    ]
    assert circuit_row(view().circuits[0], {"job-1": "trains"})["job"] == "trains"


def test_charts_have_means_over_samples_with_changes_marked() -> None:
    points = [(200.0 + n / 10, float(n % 2)) for n in range(100)]
    fine, bold = charts.over_time({"job-1": points}, {}, [CHANGE], 1.0)
    assert len(fine["data"]) == 100
    assert [value for _, value in bold["data"]] == [0.5, 0.5]
    assert [mark["xAxis"] for mark in fine["markLine"]["data"]] == [200_000]
    assert charts.summed([[(1.2, 2.0), (1.4, 4.0)], [(1.0, 1.0)]]) == [(1.5, 4.0)]
    drawn = charts.timeline(view(), 90.0, 300.0)["series"]
    assert drawn[0]["data"][:2] == [[101_000, "server1.gpu0"], [300_000, "server1.gpu0"]]


def test_an_update_of_a_large_lab_is_no_long_text() -> None:
    lab = two_tors(512)
    picture, port_map = Picture(lab, DrawingLayout(lab)), lab.initial_maps["ocs1"]
    shown = LabView(lab, maps={"ocs1": {"map": [str(c) for c in port_map]}})
    light = picture.light(shown)
    assert len(described(light, "circuit")) == 512
    assert len(json.dumps(light)) < 700_000


def test_only_who_runs_it_comes_in_unless_root_does(tmp_path: Path) -> None:
    asked: list[int | None] = []

    def connect(uid: int | None) -> ControllerClient:
        asked.append(uid)
        return ControllerClient(f"unix:{tmp_path}/nobody.sock")

    with pytest.raises(TurnedAway, match="with what they may do"):
        Visitors(connect, for_all=False).admit(4711)
    with pytest.raises(TurnedAway, match="nobody on this machine"):
        Visitors(connect, for_all=True).admit(None)
    assert asked == []


def test_it_listens_on_this_machine_alone() -> None:
    callback = dashboard.callback
    assert callback is not None
    with pytest.raises(BadInput, match="users of this machine alone"):
        callback("0.0.0.0:8480", False, lab_name=None, address="127.0.0.1:1")
