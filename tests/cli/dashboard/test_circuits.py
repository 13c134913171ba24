"""The matrix of a switch, what is dragged in it, and the stages of a change: values all of them."""

from dataclasses import replace
from typing import Any

import pytest

from patchlight.cli.dashboard.circuits_page import dragged, joined
from patchlight.cli.dashboard.lab_view import JOB_COLOURS, LabView
from patchlight.cli.dashboard.matrix import MOST_NAMED, draw_matrix, sides
from patchlight.cli.dashboard.picture import Picture, Shapes
from patchlight.cli.dashboard.texts import (
    circuit_row,
    gpus_words,
    last_change_lines,
    paths_words,
    problems,
    stage_rows,
)
from patchlight.testbed.draw.drawing_layout import DrawingLayout
from patchlight.testbed.errors import BadInput
from patchlight.testbed.generate.generate import two_tors
from patchlight.testbed.lab.model import Server
from patchlight.testbed.lab.spectrum import Channel
from patchlight.testbed.labfile.reader import builtin_lab, read_lab
from patchlight.testbed.wire.rest.circuits import ChangeAnswer, MapChangeAnswer
from patchlight.testbed.wire.rest.jobs import JobInList
from tests.support import answers
from tests.support.answers import some

OFC, ODDL = (read_lab(builtin_lab(name)) for name in ("ofc2022", "oddl4"))
HOSTS = ["server1.gpu0", "server3.gpu0"]
ODDL_JOB = {
    "id": "job-1",
    "spec": {"name": "trains"},
    "state": "running",
    "hosts": HOSTS,
}


def ofc(circuits: list[str], **said: Any) -> LabView:
    return answers.shown(OFC, maps={"ocs1": {"map": circuits}}, **said)


def oddl(**said: Any) -> LabView:
    """Servers 1 and 3 on the first star, in a job; the others on the second."""
    maps = {
        f"wss{n}": {"map": [f"1>{star}@193.175/200", f"{star}>1@193.175/200"]}
        for n, star in ((1, 2), (2, 3), (3, 2), (4, 3))
    }
    known = {
        "maps": maps,
        "jobs": [ODDL_JOB],
        "colours": {"job-1": JOB_COLOURS[1]},
    }
    return answers.shown(ODDL, **(known | said))


def titles(layer: Shapes, key: str) -> dict[str, str]:
    return {
        str(attributes[key]): str(inside[0][2])
        for _, attributes, inside in layer.values()
        if key in attributes
    }


def test_a_matrix_has_ports_with_what_is_plugged_in_and_their_circuits() -> (
    None
):
    view = ofc(["1>7", "7>1", "3>15"])
    shown = sides(view, "ocs1")
    assert shown.inputs == shown.outputs == list(range(1, 19))
    assert shown.are_named
    planned = MapChangeAnswer(breaks=["3>15"], makes=["3>9"])
    drawn = draw_matrix(view, "ocs1", shown, planned)
    cells = titles(drawn, "data-entry")
    assert set(cells) == {"1>7", "7>1", "3>15"}
    assert cells["1>7"].startswith("ocs1 1>7: up, server1.nic0 to tor1.1")
    assert (
        titles(drawn, "data-name")["in 3 server2.nic2"]
        == "input 3 server2.nic2"
    )
    assert drawn["makes 3>9"][1]["class"] == "pl-planned"
    assert drawn["breaks 3>15"][1]["class"] == "pl-going"


def test_some_ports_are_picked_by_number_or_name_with_what_they_are_joined_to() -> (
    None
):
    view = ofc(["1>7", "7>1", "3>15"])
    assert sides(view, "ocs1", "server1").inputs == [1, 2, 7]
    assert sides(view, "ocs1", "server2.*").inputs == [3, 4, 15]
    assert sides(view, "ocs1", "3 17-18").outputs == [3, 15, 17, 18]
    assert sides(view, "ocs1", "nowhere").inputs == []


def test_a_large_matrix_is_few_shapes() -> None:
    lab = two_tors(512)
    view = answers.shown(
        lab, maps={"ocs1": {"map": [str(c) for c in lab.initial_maps["ocs1"]]}}
    )
    shown = sides(view, "ocs1")
    assert len(shown.inputs) > 1000
    assert len(draw_matrix(view, "ocs1", shown)) == 2
    some = sides(view, "ocs1", "1-10")
    assert some.are_named
    assert len(some.inputs) <= MOST_NAMED


def test_what_is_dragged_goes_both_ways_where_it_does() -> None:
    view = ofc(["1>7", "7>1", "3>15"])
    ocs = OFC.optical_switch("ocs1")
    assert dragged(view, ocs, 1, 7, 8) == (["1-8"], [])
    assert dragged(view, ocs, 1, None, 8) == (["1-8"], [])
    assert dragged(view, ocs, 3, 15, 16) == (["3>16"], [])
    assert dragged(view, ocs, 4, None, 16) == (["4-16"], [])
    assert dragged(view, ocs, 1, 7, None) == ([], ["1"])
    with pytest.raises(BadInput, match="connected to itself"):
        dragged(view, ocs, 1, 7, 1)
    assert joined(ocs, ["2-9", "1-7", "x"], ["1-8"]) == "2-9 x 1-8"


def test_channels_are_dragged_with_their_ways() -> None:
    wss = ODDL.optical_switch("wss1")
    assert dragged(oddl(), wss, 1, 2, 3) == (["1-3@193.175/200"], [])
    assert dragged(oddl(), wss, 1, 2, None) == ([], ["1@193.175/200"])
    # What comes in is known from where it comes.
    assert dragged(oddl(), wss, 1, None, 3) == (["1-3@193.100"], [])
    with pytest.raises(BadInput, match="no channel arrives at 3"):
        dragged(oddl(maps={"wss1": {"map": []}}), wss, 3, None, 1)


def test_channels_are_seen_where_they_go() -> None:
    view = oddl()
    picture = Picture(ODDL, DrawingLayout(ODDL))
    light = picture.light(view)
    assert {
        name
        for name in titles(light, "data-circuit")
        if name.startswith("wss1")
    } == {"wss1 1>2"}
    line = light["wss1 1>2"][2]
    assert isinstance(line, list)
    assert line[1][1]["stroke"] == JOB_COLOURS[1]
    assert line[-1][2] == "193.175/200"
    assert light["wss2 1>3"][2][1][1]["stroke"] != JOB_COLOURS[1]  # type: ignore[index]
    said = {str(inside[0][2]) for _, _, inside in light.values()}
    there = "star1.1 to wss1.2: to wss1.2 server3.nic0 (193.200); to star1.1 server1.nic0 (193.100)"
    assert there in said
    row = circuit_row(view.circuits[0], view.job_names)
    assert (row["channel"], row["source"], row["sink"]) == (
        "193.175/200",
        "server1.nic0",
        "server3.nic0",
    )
    words = (
        "server3 through wss1, star1, wss3; server1 through wss3, star1, wss1"
    )
    assert paths_words(some(JobInList, ODDL_JOB), view) == words
    assert "nic0 193.100 THz" in str(picture.still())
    assert "'wavelength switch'" in str(picture.names())


def test_gpus_have_their_servers_where_they_are_needed() -> None:
    assert gpus_words(["server1.gpu0", "server2.gpu2"]) == "gpu0, gpu2"
    many = [f"server{n}.gpu0" for n in range(10)]
    assert gpus_words(many).startswith("server0.gpu0, server1.gpu0, ")
    assert gpus_words(many).endswith("server7.gpu0 and 2 more")


def test_signals_that_meet_are_a_problem_and_locks_of_channels_are_of_them_alone() -> (
    None
):
    servers = tuple(_sends(server, "193.100") for server in ODDL.servers)
    alike = replace(oddl(), lab=ODDL.with_changes(servers=servers))
    assert any(
        "two signals of one channel meet" in line
        for line, _ in problems(alike, None, "")
    )
    lock = {
        "ocs": "wss1",
        "port": 1,
        "channel": "193.100",
        "by": "eva",
        "why": "",
        "kind": "kept",
    }
    first, *_ = oddl(locks=[lock]).circuits
    before = oddl()
    assert first.condition == "locked"
    assert problems(oddl(locks=[lock]), None, "") == [
        ("locked: wss1.1@193.100", False)
    ]
    assert before.circuits[0].condition == "up"
    both = oddl()
    both.keep(before)
    assert both.links is before.links
    assert both.circuits == before.circuits


def _sends(server: Server, channel: str) -> Server:
    (nic,) = server.nics
    assert nic.transceiver is not None
    sending = replace(nic.transceiver, channel=Channel.parse(channel))
    return replace(server, nics=(replace(nic, transceiver=sending),))


CHANGE: dict[str, Any] = {
    "id": 3,
    "state": "intent",
    "why": "",
    "by": "eva",
    "started_at": 100.0,
    "finished_at": None,
    "message": "",
    "changes": {"ocs1": {"breaks": [], "makes": ["3>9", "9>3"]}},
    "stages_s": {"read": 0.001, "plan": 0.002, "check": 0.01, "drain": 0.2},
    "progress": {
        "stage": "make",
        "since": 107.0,
        "ocs": "ocs1",
        "cross_connects": 2,
        "done": 1,
        "cancelled": "",
        "may_cancel": True,
    },
}


def test_a_change_under_way_has_stages_behind_and_before_it() -> None:
    rows = stage_rows(some(ChangeAnswer, CHANGE), 110.0)
    assert rows[0] == ("read 1\N{NO-BREAK SPACE}ms", "done")
    assert [words for words, state in rows if state == "now"] == [
        "make ocs1, 1 of 2 cross-connects, for 3 s"
    ]
    assert [words for words, state in rows if state == "next"] == [
        "verify",
        "flows",
        "announce",
        "undrain",
    ]
    (line, *_) = last_change_lines(ofc([], changes=[CHANGE]), {}, 110.0)
    assert line == "change 3 in progress: make ocs1, 1 of 2 cross-connects"
    over = CHANGE | {"state": "committed", "finished_at": 110.0}
    del over["progress"]
    assert {
        state for _, state in stage_rows(some(ChangeAnswer, over), 110.0)
    } == {"done"}
    # Of two that are under way, both are seen to move light.
    other = CHANGE | {
        "id": 4,
        "changes": {"ocs1": {"breaks": ["1>7"], "makes": []}},
    }
    view = ofc(["1>7"], changes=[CHANGE, other])
    assert {
        str(c.ports) for c in view.circuits if c.condition == "changing"
    } == {
        "3>9",
        "9>3",
        "1>7",
    }
