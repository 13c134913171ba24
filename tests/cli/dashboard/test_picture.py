"""The picture of a lab, and what stands beside it, out of what a controller says."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from patchlight.cli.dashboard import charts, dashboard
from patchlight.cli.dashboard.auth import TurnedAway, Visitors
from patchlight.cli.dashboard.lab_view import JOB_COLOURS, LabView, job_colours
from patchlight.cli.dashboard.lab_watch import LabWatch
from patchlight.cli.dashboard.picture import Measured, Picture, Shapes
from patchlight.cli.dashboard.texts import (
    change_row,
    circuit_row,
    device_rows,
    job_row,
    last_change_lines,
    latest_words,
    problems,
    summary,
)
from patchlight.client.client import ControllerClient
from patchlight.console.events import event_words
from patchlight.testbed.draw.drawing_layout import DrawingLayout
from patchlight.testbed.errors import BadInput
from patchlight.testbed.generate.generate import two_tors
from patchlight.testbed.labfile.reader import builtin_lab, read_lab
from patchlight.testbed.wire.rest.circuits import ChangeAnswer
from patchlight.testbed.wire.rest.jobs import JobInList, LightMove
from tests.support import answers
from tests.support.answers import some
from tests.support.dashboard import pictures_folder
from tests.support.screens import lab_of
from tests.support.waiting import PATIENCE_S

LAB = read_lab(builtin_lab("ofc2022"))
MAPS = {
    ocs: {"map": [str(c) for c in m]} for ocs, m in LAB.initial_maps.items()
}
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
GAIN = {"measured_before_s": 2.0, "measured_after_s": 0.5}
SP = "\N{NO-BREAK SPACE}"


def view(**said: Any) -> LabView:
    known = {"maps": MAPS, "jobs": [JOB], "colours": {"job-1": JOB_COLOURS[1]}}
    return answers.shown(LAB, **(known | said))


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
    assert said["ocs1 1>7"].startswith(
        f"ocs1 1>7: up, server1.nic0 to tor1.1, 40{SP}Gb/s"
    )
    assert len(said) == 6


@pytest.mark.parametrize(
    ("said", "condition", "words"),
    [
        (
            {"locks": [{"ocs": "ocs1", "port": 7, "by": "bo", "why": ""}]},
            "locked",
            "by bo",
        ),
        (
            {"drift": {"ocs1": {"missing": [], "unknown": ["1>7"]}}},
            "drifting",
            "not committed",
        ),
        (
            {"drift": {"ocs1": {"missing": ["9>10"], "unknown": []}}},
            "dark",
            "not on the device",
        ),
        (
            {"changes": [{**CHANGE, "state": "intent"}]},
            "changing",
            "being changed",
        ),
        (
            {
                "light": {
                    "ocs1": {
                        "circuits": [
                            {
                                "cross_connect": "1>7",
                                "verdict": "failed",
                                "words": "no light",
                            }
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
                            {
                                "cross_connect": "1>7",
                                "verdict": "degraded",
                                "words": "3 dB less",
                            }
                        ]
                    }
                }
            },
            "degraded",
            "3 dB less",
        ),
    ],
)
def test_what_is_not_well_is_seen(
    said: dict[str, Any], condition: str, words: str
) -> None:
    shown = view(**said)
    found = [c for c in shown.circuits if c.condition == condition]
    assert found
    assert all(words in c.words for c in found)
    assert f"pl-{condition}" in json.dumps(
        Picture(LAB, DrawingLayout(LAB)).light(shown)
    )
    if condition not in ("locked", "changing"):
        (found_problem,) = problems(shown, None, "")
        assert ": ocs1 " in found_problem[0]
        assert found_problem[1] is (condition == "dark")


def test_a_switch_that_does_not_answer_is_shown_as_last_known() -> None:
    maps = {
        "ocs1": {
            "map": None,
            "unreachable": "timed out",
            "assumed": ["1>7", "7>1"],
        }
    }
    status = {
        "circuit_switches": [
            {"name": "ocs1", "reachable": False, "words": "timed out"}
        ]
    }
    shown = view(maps=maps, status=status)
    assert [c.words for c in shown.circuits] == [
        "as last known: timed out"
    ] * 2
    assert "pl-bad" in json.dumps(
        Picture(LAB, DrawingLayout(LAB)).light(shown)
    )
    told = [("no answer", True), ("ocs1 does not answer: timed out", True)]
    assert problems(shown, None, "no answer") == told


def test_a_host_without_a_link_is_shown_with_the_reason() -> None:
    told = {
        "host": "server1.gpu0",
        "reason": "its NIC is connected to server1.nic1",
    }
    shown = view(status={"hosts_without_link": [told]})
    assert problems(shown, None, "") == [
        (f"server1.gpu0 has no link: {told['reason']}", True)
    ]
    meters = Picture(LAB, DrawingLayout(LAB)).meters(shown, {})
    assert described(meters, "host")["server1.gpu0"].endswith(
        f", no link: {told['reason']}"
    )
    assert [
        name for name, drawn in meters.items() if "pl-bad" in json.dumps(drawn)
    ] == ["server1.gpu0"]


def test_what_users_write_is_text() -> None:
    bad = '"><script>alert(1)</script>'
    shown = view(locks=[{"ocs": "ocs1", "port": 1, "by": bad, "why": bad}])
    light = Picture(LAB, DrawingLayout(LAB)).light(shown)
    assert bad in described(light, "circuit")["ocs1 1>7"]
    meters = Picture(LAB, DrawingLayout(LAB)).meters(
        shown, {"server1.gpu0": Measured(1e9, 0.5)}
    )
    assert described(meters, "host")["server1.gpu0"] == (
        f"server1.gpu0: in job-1, busy 50 %, nic0 sends 1{SP}Gb/s"
    )


def test_a_job_keeps_its_colour() -> None:
    first = job_colours({}, ["a", "b"])
    assert first["a"] != first["b"]
    later = job_colours(first, ["b", "c"])
    assert later["b"] == first["b"] != later["c"]
    assert len(set(job_colours({}, [str(n) for n in range(6)]).values())) == 6


def test_rows_say_what_was_measured_beside_what_was_predicted() -> None:
    row = job_row(some(JobInList, JOB), view(), 0.3, 2e9)
    assert (row["iteration"], row["predicted"]) == (f"300{SP}ms", f"250{SP}ms")
    assert row["sends"] == f"2{SP}Gb/s"
    assert row["done"] == "3 of 10"
    shown = change_row(some(ChangeAnswer, CHANGE), view())
    assert shown["result"] == f"committed in 500{SP}ms; outage 60{SP}ms"
    assert shown["changes"] == "ocs1: −3>15 +3>9"
    lines = last_change_lines(
        view(changes=[CHANGE]), {"job-1": some(LightMove, GAIN)}, 230.5
    )
    assert lines[0] == "change 7 by eva: committed 30 s ago"
    assert f"outage 60{SP}ms" in lines[2]
    assert (
        lines[-1]
        == f"job-1: iteration 2{SP}s before, 500{SP}ms after, 4.0 × faster"
    )
    assert latest_words(view(changes=[CHANGE]), 230.5) == (
        "Last: change 7 committed (regroup), 30 s ago."
    )
    assert summary(view()) == (
        "4 servers, 2 packet switches, 1 optical switch up; 1 job running on 2 of 6 GPUs, "
        "0 waiting."
    )
    assert [r["light"] for r in device_rows(view(), "tor1")][:2] == [
        "connected to server1.nic0",
        "connected to server1.nic1",
    ]
    assert (
        circuit_row(view().circuits[0], {"job-1": "trains"})["job"] == "trains"
    )


@pytest.mark.parametrize(
    ("circuits", "undone", "can"),
    [
        (["3>9"], {}, True),
        (["3>9"], {"undone_by": 8}, False),
        (["3>9"], {"state": "rolled-back"}, False),
        (["3>10"], {}, False),  # a later change moved what it made
        # A later change uses the port that it left.
        (
            ["3>9", "4>15"],
            {},
            False,
        ),
    ],
)
def test_a_change_can_be_undone_while_nothing_else_uses_its_ports(
    circuits: list[str], undone: dict[str, Any], can: bool
) -> None:
    change = some(ChangeAnswer, CHANGE | undone)
    assert view(maps={"ocs1": {"map": circuits}}).can_undo(change) is can


def test_a_job_has_only_the_samples_of_the_time_when_it_ran() -> None:
    watch = LabWatch(lambda: pytest.fail("nothing is polled"))
    ended = {
        **JOB,
        "id": "job-0",
        "runs_since": 80.0,
        "state": "done",
        "finished_at": 100.0,
    }
    watch.view = view(jobs=[ended, JOB], changes=[CHANGE])
    for second in range(75, 120):
        for host in JOB["hosts"]:
            watch.rates[host].append(
                (float(second), 1e9 if second < 101 else 5e9)
            )
    points: dict[str, list[list[float]]] = {}
    for line in charts.sent(watch, 78.0, 300.0):
        points.setdefault(line["name"], []).extend(line["data"])
    assert {value for _, value in points["job-0"]} == {2.0}
    assert {value for _, value in points["job-1"]} == {10.0}
    assert all(81_000 <= at <= 102_500 for at, _ in points["job-0"])
    assert set(charts.live(watch, 78.0, 300.0)) == {"sent", "took", "busy"}


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            {"kind": "job-queued", "job": "j-1", "message": ""},
            "job j-1 queued",
        ),
        (
            {
                "kind": "job-stopped",
                "job": "j-1",
                "message": "stopped by the user",
            },
            "job j-1 stopped by the user",
        ),
        (
            {"kind": "circuits", **CHANGE, "origin": "127.0.0.1:5 (uid 0)"},
            "change 7 committed, regroup",
        ),
        (
            {
                "kind": "light-measured",
                "job": "j-1",
                "reconfiguration": 7,
                **GAIN,
            },
            "job j-1, change 7: an iteration took 2 s before, 0.5 s after",
        ),
        (
            {
                "kind": "drift",
                "ocs": "ocs1",
                "missing": ["2>8"],
                "unknown": [],
            },
            "ocs1 drifts: missing 2>8; not committed none",
        ),
        (
            {"kind": "drift", "ocs": "ocs1", "missing": [], "unknown": []},
            "ocs1 drifts no longer",
        ),
        (
            {
                "kind": "openflow-switch-up",
                "datapath_id": 2,
                "address": "10.0.0.9:1",
                "ports": [],
            },
            "packet switch 2 connected from 10.0.0.9:1",
        ),
        (
            {"kind": "new-kind", "number": 3, "at": 1.0, "who": "eva"},
            "new-kind: who eva",
        ),
    ],
)
def test_events_are_sentences(event: dict[str, Any], words: str) -> None:
    assert event_words(event) == words


def test_labels_of_changes_do_not_overlap() -> None:
    def labels(*at: float) -> list[str]:
        made = [
            some(ChangeAnswer, CHANGE | {"id": n, "started_at": each})
            for n, each in enumerate(at, 1)
        ]
        return [
            line["label"]["formatter"]
            for line in charts.marks_of(made, 0.0, 300.0)["data"]
        ]

    assert labels(10.0, 20.0, 30.0, 200.0) == [
        "changes 1–3",
        "",
        "",
        "change 4",
    ]
    assert labels(-10.0, 310.0) == []


def test_charts_have_means_over_samples_with_changes_marked() -> None:
    points = [(200.0 + n / 10, float(n % 2)) for n in range(100)]
    marks = charts.marks_of([some(ChangeAnswer, CHANGE)], 100.0, 300.0)
    fine, bold = charts.over_time({"job-1": points}, {}, marks, 1.0)
    assert len(fine["data"]) == 100
    assert [value for _, value in bold["data"]] == [0.5, 0.5]
    assert [mark["xAxis"] for mark in fine["markLine"]["data"]] == [200_000]
    assert charts.summed([[(1.2, 2.0), (1.4, 4.0)], [(1.0, 1.0)]]) == [
        (1.5, 4.0)
    ]
    drawn = charts.timeline(view(), 90.0, 300.0)["series"]
    assert drawn[0]["data"][:2] == [
        [101_000, "server1.gpu0"],
        [300_000, "server1.gpu0"],
    ]


def test_an_update_of_a_large_lab_is_no_long_text() -> None:
    lab = two_tors(512)
    picture = Picture(lab, DrawingLayout(lab))
    port_map = lab.initial_maps["ocs1"]
    shown = answers.shown(
        lab, maps={"ocs1": {"map": [str(c) for c in port_map]}}
    )
    light = picture.light(shown)
    assert len(described(light, "circuit")) == 512
    assert len(json.dumps(light)) < 700_000


def test_only_who_runs_it_comes_in_unless_root_does(tmp_path: Path) -> None:
    asked: list[int | None] = []

    def connect(uid: int | None) -> ControllerClient:
        asked.append(uid)
        return ControllerClient(f"unix:{tmp_path}/nobody.sock")

    with pytest.raises(TurnedAway, match="who started it"):
        Visitors(connect, for_all=False).admit(4711)
    with pytest.raises(
        TurnedAway, match="not come from a user of this machine"
    ):
        Visitors(connect, for_all=True).admit(None)
    assert asked == []


def test_it_listens_on_this_machine_alone() -> None:
    callback = dashboard.callback
    assert callback is not None
    with pytest.raises(BadInput, match="only serves users of this machine"):
        callback("0.0.0.0:8480", False, lab_name=None, address="127.0.0.1:1")


@pytest.mark.browser
@pytest.mark.others
@pytest.mark.parametrize("servers", [8, 64])
def test_pages_fit_and_can_be_read_at_any_width(
    servers: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.support.screens"]
    looked = subprocess.run(
        [*command, str(tmp_path), str(servers)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert looked.returncode == 0, looked.stdout + looked.stderr
    if servers == 64:
        taken = tmp_path / "lab-64-1440.png"
        target = pictures_folder(tmp_path) / "dashboard-large.png"
        target.write_bytes(taken.read_bytes())


def test_names_are_above_all_lines_and_large_enough() -> None:
    for lab in (LAB, lab_of(8), lab_of(64)):
        picture = Picture(lab, DrawingLayout(lab))
        assert "'text'" not in str(picture.light(answers.shown(lab)))
        named = picture.names()
        assert {s.name for s in lab.packet_switches} <= set(named)
        assert {s.name for s in lab.circuit_switches} <= set(named)
        width = float(picture.size.split()[2])
        sizes = re.findall(r"--pl-name\d: ([\d.]+)px", picture.text_sizes)
        shown = (1408 if picture.wide else 992, 788, 374)
        for pixels, size in zip(shown, sizes, strict=True):
            assert float(size) * pixels / width >= 7.5
    # Names of neighbours have room beside each other.
    assert len([name for name in named if name.startswith("server")]) == 22


def test_a_part_of_a_large_lab_is_drawn_alone() -> None:
    lab = lab_of(64)
    maps = {
        name: {"map": [str(c) for c in port_map]}
        for name, port_map in lab.initial_maps.items()
    }
    hosts = ["server1.gpu0", "server40.gpu0"]
    shown = answers.shown(lab, maps=maps, jobs=[JOB | {"hosts": hosts}])
    assert len(shown.groups["tor2"]) == 16
    assert shown.groups["job-1"] == {"server1", "server40"}
    part = shown.part(shown.groups["tor2"])
    assert [switch.name for switch in part.packet_switches] == ["tor2"]
    assert [switch.name for switch in part.circuit_switches] == ["ocs1"]
    picture = Picture(part, DrawingLayout(part))
    assert picture.detailed
    assert set(picture.meters(shown, {})) == {
        f"server{number}.gpu0" for number in range(17, 33)
    }
    assert len(described(picture.light(shown), "circuit")) == 16


@pytest.mark.parametrize(
    ("state", "said", "marked"),
    [
        ("committed", "ocs1: −3>15 +3>9", True),
        ("refused", "not made: ocs1: −3>15 +3>9", False),
        ("rolled-back", "undone: ocs1: −3>15 +3>9", True),
        ("unknown", "perhaps made: ocs1: −3>15 +3>9", True),
    ],
)
def test_a_change_says_what_was_done(
    state: str, said: str, marked: bool
) -> None:
    told = CHANGE | {"state": state, "message": "port 3 is locked"}
    change = some(ChangeAnswer, told)
    assert change_row(change, view())["changes"] == said
    lines = last_change_lines(view(changes=[told]), {}, 230.5)
    counted = [line for line in lines if "cross-connects broken" in line]
    assert bool(counted) == marked
    assert bool(charts.marks_of([change], 100.0, 300.0)["data"]) == marked


def test_jobs_are_named_in_charts_with_their_id_only_if_needed() -> None:
    other = JOB | {"id": "job-2", "spec": {"name": "other", "iterations": 1}}
    again = JOB | {"id": "job-3"}
    assert view(jobs=[JOB, other]).labels["job-1"] == "trains"
    labels = view(jobs=[JOB, other, again]).labels
    assert labels == {
        "job-1": "trains job-1",
        "job-2": "other",
        "job-3": "trains job-3",
    }
