"""``patchlight ocs`` as an operator uses it, against a running controller."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from patchlight.cli.dashboard.lab_view import LabView
from patchlight.cli.main import cli
from patchlight.cli.ocs.names import read_map_file
from patchlight.cli.ocs.watch import _event_line
from patchlight.testbed.errors import BadInput
from patchlight.testbed.labfile.reader import read_lab
from tests.support.controller_process import (
    DRY_LAB,
    ControllerProcess,
    OcsCommand,
    controller_process,
)

pytestmark = pytest.mark.xdist_group("a controller of circuits")


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ControllerProcess]:
    with controller_process(
        tmp_path_factory.mktemp("controller")
    ) as controller:
        yield controller


@pytest.fixture
def ocs(running: ControllerProcess) -> OcsCommand:
    """``patchlight ocs``; begins with the lab's own cross-connects, unlocked."""
    running.client.clear_stop()
    for lock in running.client.locks():
        running.client.unlock(lock.ocs, [lock.port])
    running.client.reconfigure({"o1": ["1-3", "2-5"]}, only=True)
    running.client.adopt([])
    return OcsCommand(["--lab", str(running.lab)])


def map_of(running: ControllerProcess) -> list[str]:
    return list(running.client.circuits()["o1"].map or ())


def test_a_dry_run_shows_and_changes_nothing(
    ocs: OcsCommand, running: ControllerProcess
) -> None:
    for words in (["connect", "o1", "2:4"], ["disconnect", "o1", "2"]):
        assert "o1 - 2>5" in ocs(*words, "--dry-run")
    shown = json.loads(
        ocs("connect", "o1", "b.n1:t1.2", "--dry-run", "--json")
    )
    assert shown["links_down"] == ["b.n1:t2.1"]
    assert shown["links_up"] == ["b.n1:t1.2"]
    assert map_of(running) == ["1>3", "2>5", "3>1", "5>2"]


def test_connect_one_way_and_by_every_kind_of_name(
    ocs: OcsCommand, running: ControllerProcess
) -> None:
    ocs("connect", "o1", "7:8", "--one-way")
    ocs("connect", "o1", "o1.9:10", "11>12", "a.g0:t1.2")
    assert map_of(running) == [
        "1>4",
        "2>5",
        "4>1",
        "5>2",
        "7>8",
        "9>10",
        "10>9",
        "11>12",
    ]


def test_a_map_is_applied_from_yaml_csv_and_what_show_prints(
    ocs: OcsCommand, running: ControllerProcess, tmp_path: Path
) -> None:
    file = tmp_path / "map.yaml"
    file.write_text('o1: [7-8, "9>10", "b.n1:t1.2"]\n')
    assert "o1 - 1>3" in ocs("apply", str(file), "--only", "--dry-run")
    planned = ocs("apply", str(file), "--dry-run")
    assert "o1 - 2>5" in planned
    assert "link down: b.n1:t2.1" in planned
    assert "1>3" not in planned
    ocs("apply", str(file))
    assert map_of(running) == [
        "1>3",
        "2>4",
        "3>1",
        "4>2",
        "7>8",
        "8>7",
        "9>10",
    ]
    ocs("apply", str(file), "--only")
    assert map_of(running) == ["2>4", "4>2", "7>8", "8>7", "9>10"]
    table = tmp_path / "map.csv"
    table.write_text(
        "ocs,from,to,way\n# spare\no1,a.n0,t1.1\no1,2,5,both\no1,7,8,one-way\n"
    )
    ocs("apply", str(table), "--only")
    assert map_of(running) == ["1>3", "2>5", "3>1", "5>2", "7>8"]
    kept = tmp_path / "kept.json"
    kept.write_text(ocs("show", "--json"))
    ocs("disconnect", "o1", "1", "7")
    ocs("apply", str(kept), "--only")
    assert map_of(running) == ["1>3", "2>5", "3>1", "5>2", "7>8"]
    assert "nothing to change" in ocs(
        "apply", str(kept), "--only", "--dry-run"
    )


def test_every_mistake_of_a_map_file_is_told_with_its_place(
    tmp_path: Path,
) -> None:
    lab_text = DRY_LAB.format(api=1, openflow=2)
    (tmp_path / "lab.yaml").write_text(lab_text)
    lab = read_lab(tmp_path / "lab.yaml")
    for name, text, mistakes in (
        (
            "a.csv",
            "o1,1,99\no2,1,2\no1,1,2\no1,1,3\n",
            [
                ":1:1: o1 has ports",
                ":2:1: lab dry has no",
                ":4:1: input port 1 is used twice",
            ],
        ),
        ("b.yaml", "o1: [1-2, 3-x]", [":1:11: '3-x' is not a pair"]),
        (
            "c.yaml",
            "o1: [3-3, 4>4, {a: b}]",
            [":1:6: '3-3' connects", ":1:11: '4>4' connects", ":1:16:"],
        ),
        ("d.yaml", "just words", [":1:1: expected cross-connects by OCS"]),
        (
            "e.csv",
            "1,2,3,4,5\n1,2\n1,3\n",
            [":1:1: expected OCS,A,B", ":3:1: input port 1 is used"],
        ),
        (
            "f.yaml",
            "o1: [1-2]\no1: [3-4]\n",
            [":2:1: duplicate key 'o1', first on line 1"],
        ),
        ("g.yaml", "[" * 9_000, ["nested more than 32 levels deep"]),
        (
            "i.yaml",
            "o1: !!python/tuple [1-2]",
            [":1:1: expected a list of cross-connects"],
        ),
        (
            "h.csv",
            f"1,2\n{'3' * 200_000},4\n",
            [":2:1: not CSV: field larger than"],
        ),
    ):
        file = tmp_path / name
        file.write_text(text)
        with pytest.raises(BadInput) as caught:
            read_map_file(str(file), lab)
        for words in mistakes:
            assert words in caught.value.message
    listed = tmp_path / "f.yaml"
    listed.write_text("[1-2, 7>8, 3:9]")
    assert read_map_file(str(listed), lab) == {"o1": ["1-2", "7>8", "3-9"]}


def can_undo(running: ControllerProcess) -> dict[int, bool]:
    """What the dashboard offers of the change that was made first and of what undid it."""
    view = LabView(read_lab(running.lab), maps=running.client.circuits())
    return {
        change.id: view.can_undo(change)
        for change in running.client.reconfigurations()
        if "spare link" in change.why or "not needed" in change.why
    }


def test_history_says_who_what_from_where_and_why_and_a_change_is_undone(
    ocs: OcsCommand, running: ControllerProcess
) -> None:
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
    assert "o1 + 7>8" in ocs("history", str(last["id"]))
    undoing = json.loads(ocs("history", "o1", "--last", "1", "--json"))[0]
    assert undoing["why"] == f"undoes change {last['id']}: not needed"
    again = ocs("rollback", str(last["id"]), code=1)
    assert (
        f"change {last['id']} was already undone by change {undoing['id']}"
        in again
    )
    assert f"patchlight ocs rollback {undoing['id']}" in again
    assert can_undo(running) == {last["id"]: False, undoing["id"]: True}
    # What undid it is undone itself: then the first stands again, and can be undone again.
    ocs("rollback", str(undoing["id"]))
    assert can_undo(running) == {last["id"]: True, undoing["id"]: False}
    ocs("disconnect", "o1", "7")
    gone = ocs("rollback", str(last["id"]), code=1)
    assert "cannot be undone alone: o1 7>8 is gone" in gone
    assert can_undo(running) == {last["id"]: False, undoing["id"]: False}


def test_a_locked_port_stays_as_it_is(
    ocs: OcsCommand, running: ControllerProcess
) -> None:
    assert "give the reason with --why" in ocs("lock", "o1.2", code=2)
    ocs("lock", "b.n1", "o1.16", "--why", "measuring")
    assert "measuring" in ocs("lock")
    assert "2 locked" in ocs("show")
    refused = ocs("connect", "o1", "2:4", code=1)
    assert "o1.2 is locked" in refused
    assert "measuring" in refused
    assert "would be refused" in ocs(
        "connect", "o1", "2:4", "--dry-run", code=1
    )
    assert map_of(running) == ["1>3", "2>5", "3>1", "5>2"]
    assert "o1.2 is unlocked" in ocs(
        "lock", "--release", "o1.2", "--why", "done"
    )
    ocs("connect", "o1", "2:4")


def test_maps_are_saved_and_restored_whole(
    ocs: OcsCommand, running: ControllerProcess
) -> None:
    ocs("save", "monday", "--why", "before the demo")
    ocs("connect", "o1", "2:4", "7:8")
    assert "before the demo" in ocs("save")
    ocs("apply", "monday")
    assert map_of(running) == ["1>3", "2>5", "3>1", "5>2"]
    wrong = ocs("apply", "tuesday", code=2)
    assert "no file or saved map 'tuesday': the saved maps are monday" in wrong


def test_the_stop_button_is_pressed_and_cleared(
    ocs: OcsCommand, running: ControllerProcess
) -> None:
    assert "smoke" in ocs("stop", "--why", "smoke")
    assert "smoke" in ocs("connect", "o1", "7:8", code=1)
    assert "changes are allowed" in ocs("stop", "--clear")
    ocs("connect", "o1", "7:8")
    assert json.loads(ocs("stop", "--show", "--json")) == {"pressed": None}


def test_what_can_be_looked_at_prints_and_is_json(
    ocs: OcsCommand, running: ControllerProcess
) -> None:
    assert "dry-run" in ocs("show")
    assert json.loads(ocs("show", "--json"))["o1"]["ports"] == 16
    assert json.loads(ocs("show", "o1.5", "--json"))["o1"]["map"] == [
        "2>5",
        "5>2",
    ]
    assert "unverified" in ocs("show", "--power")
    circuits = json.loads(ocs("show", "b.n1", "--power", "--json"))["o1"][
        "circuits"
    ]
    assert [row["cross_connect"] for row in circuits] == ["2>5", "5>2"]
    assert "none failed" in ocs("verify")
    assert json.loads(ocs("show", "--alarms", "--json")) == []
    assert "o1 matches its committed map" in ocs("verify")
    assert json.loads(ocs("verify", "--json"))["o1"]["missing"] == []
    seen = running.client.last_event()
    ocs("connect", "o1", "7:8", "--why", "look")
    line = ocs("watch", "--after-event", str(seen), "--count", "1")
    assert "committed" in line
    assert "o1 + 7>8" in line


def test_many_circuits_do_not_go_unasked(
    ocs: OcsCommand, running: ControllerProcess
) -> None:
    ocs("connect", "o1", "7:8", "9:10", "11:12")
    ports = [str(n) for n in range(1, 17)]
    assert "nothing was changed" in ocs("disconnect", "o1", *ports, code=1)
    assert "nothing was changed" in ocs(
        "disconnect", "o1", *ports, "--yes", code=1
    )
    assert "nothing was changed" in ocs(
        "disconnect", "o1", *ports, code=1, text="y\no2\n"
    )
    assert len(map_of(running)) == 10
    ocs("disconnect", "o1", *ports, text="y\no1\n")
    assert map_of(running) == []


def completions(words: str, incomplete: str) -> list[str]:
    environment = {
        "_PATCHLIGHT_COMPLETE": "bash_complete",
        "COMP_WORDS": f"patchlight {words} {incomplete}",
        "COMP_CWORD": str(len(words.split()) + 1),
    }
    result = CliRunner().invoke(
        cli,
        [],
        prog_name="patchlight",
        env=environment,
        complete_var="_PATCHLIGHT_COMPLETE",
    )
    return [
        line.partition(",")[2] for line in result.output.splitlines() if line
    ]


def test_names_complete_from_the_lab_file(running: ControllerProcess) -> None:
    lab = f"ocs connect --lab {running.lab}"
    assert completions(lab, "o") == ["o1"]
    assert "b.n1:" in completions(lab, "b")
    assert completions(f"{lab} o1", "b") == ["b.n1:", "b.g1:", "b:"]
    assert "b.n1:t1.2" in completions(f"{lab} o1", "b.n1:t1")
    assert completions(f"ocs lock --lab {running.lab}", "o1.6") == ["o1.6"]
    assert completions("ocs connect --lab /nowhere.yaml", "o") == []


def test_hosts_complete_wherever_a_command_takes_them() -> None:
    lab = "--lab ofc2022"
    for command, incomplete, name in (
        (f"ocs connect {lab} ocs1", "server1.g", "server1.gpu0:"),
        (f"ocs connect {lab} ocs1", "gp", "gpu0:"),
        (f"ocs colocate {lab}", "gp", "gpu0"),
        (f"emulate link {lab}", "to", "tor1"),
        (f"emulate capture {lab}", "gp", "gpu0"),
        (f"doctor {lab} --server", "s", "server1"),
    ):
        assert name in completions(command, incomplete), command


def test_direct_is_refused_beside_a_controller(
    ocs: OcsCommand, running: ControllerProcess, tmp_path: Path
) -> None:
    output = ocs("show", "--direct", "--state", str(tmp_path), code=1)
    assert "the controller of lab dry at" in output


def test_text_in_brackets_is_shown_and_breaks_nothing(
    ocs: OcsCommand, running: ControllerProcess
) -> None:
    for number, why in enumerate(("[/]", "[rack 3] spare"), 7):
        ocs("connect", "o1", f"{number}:{number + 5}", "--why", why)
    shown = ocs("history", "--last", "2")
    assert "[/]" in shown
    assert "[rack 3] spare" in shown
    assert "[/b]" in ocs("lock", "o1.5", "--why", "[/b]")
    assert "[/b]" in ocs("lock")


def test_the_lab_comes_from_the_environment_and_the_only_one_is_named(
    running: ControllerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATCHLIGHT_LAB", str(running.lab))
    result = CliRunner().invoke(cli, ["ocs", "show"])
    assert "dry-run" in result.stdout
    assert result.stderr == ""
    monkeypatch.delenv("PATCHLIGHT_LAB")
    monkeypatch.setattr("patchlight.console.connection.RUN_ROOT", tmp_path)
    (tmp_path / "dry").mkdir()
    (tmp_path / "dry" / "lab.yaml").write_text(running.lab.read_text())
    for command in (["ocs", "show"], ["job", "list"], ["status"]):
        result = CliRunner().invoke(cli, command)
        # No packet switch has connected to this controller: status is red.
        assert result.exit_code == (command == ["status"]), result.output
        assert result.stderr == "lab dry: the only one that is up\n"


@pytest.mark.parametrize("address", ["", "..", "a:b:c", "\udce9", "[/]"])
def test_an_address_that_is_none_is_refused_in_words(address: str) -> None:
    result = CliRunner().invoke(cli, ["job", "list", "--controller", address])
    assert result.exit_code == 2
    assert "Invalid value for '--controller'" in result.output


def test_an_event_of_many_ports_is_a_short_line() -> None:
    line = _event_line(
        {"at": 0, "kind": "locked", "ocs": "o1", "ports": [4, *range(6, 321)]}
    )
    assert line.endswith("locked o1 4, 6-320")
    done = {
        "at": 0,
        "kind": "circuits",
        "id": 3,
        "state": "committed",
        "message": "done",
        "by": "x",
    }
    assert _event_line(done).endswith("change 3 committed")
