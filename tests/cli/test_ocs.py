"""``patchlight ocs`` as an operator uses it: against a running controller, and without one."""

import asyncio
import functools
import json
import threading

import click
import pytest
from click.testing import CliRunner
from fastapi import FastAPI

from patchlight.cli.main import cli
from patchlight.cli.ocs.maps import read_map_file
from patchlight.cli.ocs.options import Manner
from patchlight.cli.ocs.output import carry_out, confirm
from patchlight.controller.api.circuits import circuit_routes
from patchlight.controller.changes.hooks import NoHooks
from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.circuits.device_lock import device_lock
from patchlight.controller.circuits.registry import open_driver
from patchlight.controller.client import ControllerClient
from patchlight.controller.operations import CircuitOperations
from patchlight.controller.standalone import InProcess
from patchlight.controller.store import Store
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.labfile.reader import read_lab
from tests.support.controller_process import DRY_LAB, controller_process
from tests.support.emulated_devices import lab_file
from tests.support.emulated_devices import running as running_device


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with controller_process(tmp_path_factory.mktemp("controller")) as controller:
        yield controller


@pytest.fixture
def ocs(running):
    """Run ``patchlight ocs``; begins with the lab's own cross-connects, unlocked."""

    def run(*words, code=0, text=None):
        result = CliRunner().invoke(cli, ["ocs", *words, "--lab", str(running.lab)], input=text)
        error = result.exception
        found = error.exit_code if isinstance(error, PatchlightError) else result.exit_code
        assert found == code, (result.output, error)
        return result.output if error is None else f"{result.output}{error}"

    running.client.clear_stop()
    for lock in running.client.locks():
        running.client.unlock(lock["ocs"], [lock["port"]])
    running.client.reconfigure({"o1": ["1-3", "2-5"]}, only=True)
    running.client.adopt([])
    return run


def map_of(running):
    return running.client.circuits()["o1"]["map"]


def test_a_dry_run_shows_and_changes_nothing(ocs, running):
    for words in (["connect", "o1", "2:4"], ["disconnect", "o1", "2"]):
        assert "o1 - 2>5" in ocs(*words, "--dry-run")
    shown = json.loads(ocs("connect", "o1", "b.n1:t1.2", "--dry-run", "--json"))
    assert shown["links_down"] == ["b.n1:t2.1"]
    assert shown["links_up"] == ["b.n1:t1.2"]
    assert map_of(running) == ["1>3", "2>5", "3>1", "5>2"]


def test_connect_one_way_and_by_every_kind_of_name(ocs, running):
    ocs("connect", "o1", "7:8", "--one-way")
    ocs("connect", "o1", "o1.9:10", "11>12", "a.g0:t1.2")
    assert map_of(running) == ["1>4", "2>5", "4>1", "5>2", "7>8", "9>10", "10>9", "11>12"]
    assert "o1 has ports 1–16, not 17" in ocs("connect", "o1", "3:17", code=2)
    assert "t2.3 is not plugged into an OCS" in ocs("connect", "o1", "1:t2.3", code=2)
    assert "no device called 'c'" in ocs("connect", "o1", "1:c.n0", code=2)
    assert "expected A:B" in ocs("connect", "o1", "a.n0-b.n1", code=2)


def test_a_map_is_applied_from_yaml_csv_and_what_show_prints(ocs, running, tmp_path):
    file = tmp_path / "map.yaml"
    file.write_text('o1: [7-8, "9>10", "b.n1:t1.2"]\n')
    assert "o1 - 1>3" in ocs("diff", str(file))
    planned = ocs("plan", str(file))
    assert "o1 - 2>5" in planned
    assert "link goes: b.n1:t2.1" in planned
    assert "1>3" not in planned
    ocs("apply", str(file))
    assert map_of(running) == ["1>3", "2>4", "3>1", "4>2", "7>8", "8>7", "9>10"]
    ocs("apply", str(file), "--only")
    assert map_of(running) == ["2>4", "4>2", "7>8", "8>7", "9>10"]
    table = tmp_path / "map.csv"
    table.write_text("ocs,from,to,way\n# spare\no1,a.n0,t1.1\no1,2,5,both\no1,7,8,one-way\n")
    ocs("apply", str(table), "--only")
    assert map_of(running) == ["1>3", "2>5", "3>1", "5>2", "7>8"]
    kept = tmp_path / "kept.json"
    kept.write_text(ocs("show", "--json"))
    ocs("disconnect", "o1", "1", "7")
    ocs("apply", str(kept), "--only")
    assert map_of(running) == ["1>3", "2>5", "3>1", "5>2", "7>8"]
    assert ocs("diff", str(kept)) == ""


def test_every_mistake_of_a_map_file_is_told_with_its_place(tmp_path):
    lab_text = DRY_LAB.format(api=1, openflow=2)
    (tmp_path / "lab.yaml").write_text(lab_text)
    lab = read_lab(tmp_path / "lab.yaml")
    for name, text, mistakes in (
        (
            "a.csv",
            "o1,1,99\no2,1,2\no1,1,2\no1,1,3\n",
            [":1: o1 has ports", ":2: lab dry has no", ":4: in:1 is used twice"],
        ),
        ("b.yaml", "o1: [1-2, 3-x]", ["o1 2: '3-x' is not a pair"]),
        ("c.yaml", "o1: [3:17]", ["expected a list of texts"]),
        ("d.yaml", "just words", ["expected cross-connects by OCS"]),
        ("e.csv", "1,2,3,4,5\n", [":1: expected OCS,A,B"]),
    ):
        file = tmp_path / name
        file.write_text(text)
        with pytest.raises(BadInput) as caught:
            read_map_file(str(file), lab)
        for words in mistakes:
            assert words in caught.value.message
    listed = tmp_path / "f.yaml"
    listed.write_text("[1-2, 7>8]")
    assert read_map_file(str(listed), lab) == {"o1": ["1-2", "7>8"]}


def test_history_says_who_what_from_where_and_why_and_a_change_is_undone(ocs, running):
    ocs("connect", "o1", "7:8", "--why", "spare link")
    last = json.loads(ocs("history", "o1", "--last", "1", "--json"))[0]
    assert last["why"] == "spare link"
    assert last["by"]
    assert last["origin"].startswith("127.0.0.1:")
    shown = ocs("history")
    assert "spare link" in shown
    assert "−0 +2" in shown
    ocs("connect", "o1", "9:10")
    ocs("rollback", str(last["id"]), "--why", "not needed")
    assert map_of(running) == ["1>3", "2>5", "3>1", "5>2", "9>10", "10>9"]
    assert "o1 + 7>8" in ocs("history", "--id", str(last["id"]))
    again = ocs("rollback", str(last["id"]), code=1)
    assert "cannot be undone by itself: o1 7>8 is gone" in again
    assert "no change 99999" in ocs("rollback", "99999", code=2)


def test_a_locked_port_stays_as_it_is(ocs, running):
    assert "say --why" in ocs("lock", "o1.2", code=2)
    ocs("lock", "b.n1", "o1.16", "--why", "measuring")
    assert "measuring" in ocs("lock")
    assert "2 locked" in ocs("show")
    refused = ocs("connect", "o1", "2:4", code=1)
    assert "o1.2 is locked" in refused
    assert "measuring" in refused
    assert "would be refused" in ocs("connect", "o1", "2:4", "--dry-run", code=1)
    assert map_of(running) == ["1>3", "2>5", "3>1", "5>2"]
    assert "o1.2 is unlocked" in ocs("unlock", "o1.2", "--why", "done")
    ocs("connect", "o1", "2:4")


def test_maps_are_saved_and_restored_whole(ocs, running):
    ocs("save", "monday", "--why", "before the demo")
    ocs("connect", "o1", "2:4", "7:8")
    assert "before the demo" in ocs("restore", "--list")
    ocs("restore", "monday")
    assert map_of(running) == ["1>3", "2>5", "3>1", "5>2"]
    assert "no maps are saved as 'tuesday'" in ocs("restore", "tuesday", code=2)


def test_the_stop_button_is_pressed_and_cleared(ocs, running):
    assert "smoke" in ocs("stop", "--why", "smoke")
    assert "smoke" in ocs("connect", "o1", "7:8", code=1)
    assert "not pressed" in ocs("stop", "--clear")
    ocs("connect", "o1", "7:8")
    assert json.loads(ocs("stop", "--status", "--json")) == {"pressed": None}


def test_what_can_be_looked_at_prints_and_is_json(ocs, running):
    assert "dry-run" in ocs("list")
    assert json.loads(ocs("list", "--json"))[0]["ports"] == 16
    assert "unverified" in ocs("show", "--power")
    circuits = json.loads(ocs("power", "b.n1", "--json"))["o1"]["circuits"]
    assert [row["cross_connect"] for row in circuits] == ["2>5", "5>2"]
    assert "none failed" in ocs("verify")
    assert json.loads(ocs("alarms", "--json")) == []
    assert "o1 is as committed" in ocs("drift")
    assert json.loads(ocs("drift", "--json"))["o1"]["missing"] == []
    seen = running.client.last_event()
    ocs("connect", "o1", "7:8", "--why", "look")
    line = ocs("watch", "--since", str(seen), "--count", "1")
    assert "circuits" in line
    assert "o1 + 7>8" in line


def test_many_circuits_do_not_go_unasked(ocs, running):
    ocs("connect", "o1", "7:8", "9:10", "11:12")
    ports = [str(n) for n in range(1, 17)]
    assert "nothing was changed" in ocs("disconnect", "o1", *ports, code=1)
    assert "nothing was changed" in ocs("disconnect", "o1", *ports, "--yes", code=1)
    assert "nothing was changed" in ocs("disconnect", "o1", *ports, code=1, text="y\no2\n")
    assert len(map_of(running)) == 10
    ocs("disconnect", "o1", *ports, text="y\no1\n")
    assert map_of(running) == []


def preview(**given):
    return {"changes": {}, "links_down": [], "links_up": [], "jobs": [], "lost": {},
            "cleared": [], "objections": []} | given  # fmt: skip


@pytest.mark.parametrize(
    ("given", "yes", "text", "agreed"),
    [
        ({}, 0, "", False),  # nothing in use: no question
        ({"jobs": ["j"]}, 0, "y\n", True),
        ({"jobs": ["j"]}, 0, "n\n", None),
        ({"jobs": ["j"]}, 0, "", None),  # nobody there to ask
        ({"jobs": ["j"]}, 1, "", False),
        ({"jobs": ["j"], "objections": ["locked"]}, 0, "", False),  # will be refused anyway
        ({"lost": {"o1": 9}}, 0, "y\no1\n", True),
        ({"lost": {"o1": 9}}, 0, "y\nyes\n", None),
        ({"lost": {"o1": 9}}, 1, "o1\n", True),
        ({"lost": {"o1": 9}}, 2, "", False),
        ({"lost": {"o1": 2}, "cleared": ["o1"]}, 0, "", False),
    ],
)
def test_questions_are_asked_where_something_in_use_or_much_goes(given, yes, text, agreed):
    @click.command()
    def asking():
        click.echo(f"agreed {confirm(preview(**given), Manner(False, yes, '', False))}")

    result = CliRunner().invoke(asking, input=text)
    if agreed is None:
        assert isinstance(result.exception, PatchlightError)
        assert "nothing was changed" in result.exception.message
    else:
        assert f"agreed {agreed}" in result.output


class Busy(NoHooks):
    """Jobs that ride on whatever moves."""

    def __init__(self):
        self.jobs, self.next = ["train-1"], []

    def jobs_using(self, moved):
        return self.next.pop(0) if self.next else self.jobs


def test_a_circuit_that_a_job_uses_is_shown_and_asked_for(tmp_path):
    (tmp_path / "lab.yaml").write_text(DRY_LAB.format(api=1, openflow=2))
    lab, busy = read_lab(tmp_path / "lab.yaml"), Busy()
    with asyncio.Runner() as runner:
        drivers = {"o1": open_driver(lab.circuit_switch("o1"))}
        parts = CircuitParts(lab, drivers, Store(":memory:"), busy, busy)
        app = FastAPI()
        app.include_router(circuit_routes(CircuitOperations(parts, Transactions(parts))))
        transport = InProcess(app, runner.get_loop())
        client = ControllerClient("test", transport=transport)
        ask = functools.partial(client.reconfigure, {"o1": ["2-4"]})

        @click.command()
        @click.option("--yes", is_flag=True)
        def asking(yes):
            carry_out(ask, Manner(False, int(yes), "why", False))

        def told(*words, text=""):
            result = CliRunner().invoke(asking, words, input=text)
            return f"{result.output}{result.exception or ''}"

        start = client.circuits()
        shown = told(text="n\n")
        for line in ("o1 - 2>5", "o1 + 2>4", "in use by job train-1", "link goes: b.n1:t2.1"):
            assert line in shown
        assert client.circuits() == start
        assert "committed" in told(text="y\n")
        client.reconfigure({"o1": ["2-5"]})
        assert "committed" in told("--yes")
        client.reconfigure({"o1": ["2-5"]})
        # Nobody rides when it is looked at, somebody does when it is to be done.
        busy.next = [[]]
        assert "the traffic of train-1 rides on what would change" in told()
        assert client.circuits() == start


def completions(running, words, incomplete):
    environment = {
        "_PATCHLIGHT_COMPLETE": "bash_complete",
        "COMP_WORDS": f"patchlight {words} {incomplete}",
        "COMP_CWORD": str(len(words.split()) + 1),
    }
    result = CliRunner().invoke(
        cli, [], prog_name="patchlight", env=environment, complete_var="_PATCHLIGHT_COMPLETE"
    )
    return [line.partition(",")[2] for line in result.output.splitlines() if line]


def test_names_complete_from_the_lab_file(running):
    lab = f"ocs connect --lab {running.lab}"
    assert completions(running, lab, "o") == ["o1"]
    assert completions(running, f"{lab} o1", "b") == ["b.n1:"]
    assert "b.n1:t1.2" in completions(running, f"{lab} o1", "b.n1:t1")
    assert completions(running, f"ocs lock --lab {running.lab}", "o1.6") == ["o1.6"]
    assert completions(running, "ocs connect --lab /nowhere.yaml", "o") == []


# -- without a controller ------------------------------------------------------------------------


def test_direct_is_refused_beside_a_controller(ocs, running, tmp_path):
    said = ocs("show", "--direct", "--state", str(tmp_path), code=1)
    assert "a controller of lab dry runs at" in said


def test_direct_talks_to_the_device_and_remembers(tmp_path):
    with running_device(tmp_path, lab_file(tmp_path, initial=("1-2",)), "--no-fabric") as device:
        lab = tmp_path / "lab.yaml"
        text = lab.read_text().replace("127.0.0.1:3082", device.switch.address)
        lab.write_text(text + "controller: {api: '127.0.0.1:1'}\n")

        def direct(*words, code=0):
            options = ["--direct", "--lab", str(lab), "--state", str(tmp_path / "state")]
            result = CliRunner().invoke(cli, ["ocs", *words, *options])
            error = result.exception
            found = error.exit_code if isinstance(error, PatchlightError) else result.exit_code
            assert found == code, (result.output, error)
            return f"{result.output}{error or ''}"

        direct("connect", "ocs1", "5:6", "--why", "no controller today")
        assert json.loads(direct("show", "--json"))["ocs1"]["map"] == ["1>2", "2>1", "5>6", "6>5"]
        assert "no controller today" in direct("history")
        direct("lock", "ocs1.5", "--why", "keep")
        assert "keep" in direct("disconnect", "ocs1", "5", code=1)
        # The NIC's light arrives, and no more is lost than may be; the others are dark.
        shown = direct("verify")
        assert "-0.3 dBm" in shown
        assert "1 circuit verified, 3 unverified, none failed" in shown
        with device_lock([read_lab(lab).circuit_switch("ocs1")], "somebody"):
            assert "is held by somebody (pid" in direct("show", code=1)
        device.fault(report="*C EQPT: 1.1.1: mirror stuck")
        assert "ocs1" in direct("list")
        device.kill()
        assert "connecting to ocs1" in direct("show", code=1)


@pytest.fixture
def beside(tmp_path):
    """A lab of two circuit switches, of which one answers, and ``--direct`` commands on it."""
    with running_device(tmp_path, lab_file(tmp_path, initial=("1-2",)), "--no-fabric") as device:
        lab = tmp_path / "lab.yaml"
        text = lab.read_text().replace("127.0.0.1:3082", device.switch.address)
        second = "  - {name: ocs2, driver: calient-tl1, address: '127.0.0.1:1', ports: 16}\nfibres:"
        lab.write_text(text.replace("fibres:", second) + "controller: {api: '127.0.0.1:1'}\n")

        def direct(*words, code=0):
            options = ["--direct", "--lab", str(lab), "--state", str(tmp_path / "state")]
            result = CliRunner().invoke(cli, ["ocs", *words, *options])
            error = result.exception
            found = error.exit_code if isinstance(error, PatchlightError) else result.exit_code
            assert found == code, (result.output, error)
            return f"{result.output}{error or ''}"

        direct.device, direct.lab = device, read_lab(lab)
        yield direct


def test_direct_opens_only_the_switches_it_needs(beside):
    with device_lock([beside.lab.circuit_switch("ocs2")], "somebody"):
        beside("connect", "ocs1", "5:6")
        assert "5>6" in beside("show", "ocs1")
        beside("rollback", "1")
        beside("save", "monday", "ocs1")
        beside("restore", "monday")
        beside("lock", "ocs1.9", "--why", "x")
        assert "5>6" not in beside("show", "ocs1")
        assert "is held by somebody" in beside("show", code=1)
        assert "committed" in beside("history")
    shown = beside("show", code=1)
    assert "1>2" in shown
    assert "ocs2 does not answer: connecting to ocs2 at 127.0.0.1:1" in shown
    assert "the map of ocs2 is not known" in beside("connect", "ocs2", "1:2", code=1)
    assert "ocs2 does not answer" in beside("verify", code=1)
    assert "ocs2 does not answer" in beside("drift", code=1)
    found = json.loads(beside("list", "--json"))
    assert [(row["name"], row["reachable"]) for row in found] == [("ocs1", True), ("ocs2", False)]
    assert found[0]["identity"]["vendor"]


def test_direct_alarms_and_watch_listen_to_the_devices(beside):
    def later(act):
        timer = threading.Timer(0.8, act)
        timer.start()
        return timer

    def report(words):
        beside.device.fault(report=f"*C EQPT: 1.1.1: {words}")

    timer = later(lambda: report("mirror stuck"))
    assert "mirror stuck" in beside("alarms", "ocs1", "--listen", "2")
    timer.join()
    beside.device.fault(report="A EQPT: 1.1.1: mirror stuck")  # cleared
    timer = later(lambda: report("fan failed"))
    assert "fan failed" in beside("watch", "ocs1", "--count", "1")
    timer.join()
    beside.device.fault(report="A EQPT: 1.1.1: fan failed")
    # Others work on the devices meanwhile: both the map and the journal tell.
    timer = later(lambda: beside("connect", "ocs1", "5:6", "--why", "meanwhile"))
    seen = [
        json.loads(line) for line in beside("watch", "ocs1", "--count", "2", "--json").splitlines()
    ]
    timer.join()
    assert {event["kind"] for event in seen} == {"map", "circuits"}
    assert all(event["changes"]["ocs1"]["makes"] == ["5>6", "6>5"] for event in seen)


def test_alarms_that_stand_are_told_apart_from_those_that_have_gone(beside):
    beside.device.fault(fail_ports=[9])
    rows = json.loads(beside("alarms", "ocs1", "--json"))
    assert [row["standing"] for row in rows if "mirror stuck" in row["words"]] == [True]
    shown = beside("alarms", "ocs1")
    assert "standing" in shown
    assert "yes" in shown
    found = json.loads(beside("list", "--json"))
    assert [row["standing_alarms"] for row in found] == [1, None]


def test_a_map_file_that_is_not_there_is_wrong_input(beside, tmp_path):
    said = beside("apply", str(tmp_path / "none.yaml"), code=2)
    assert "No such file or directory" in said
    assert "Errno" not in said
