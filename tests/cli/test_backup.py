"""A controller's state is backed up while it is in use, and restored elsewhere."""

from pathlib import Path

from click.testing import CliRunner, Result

from patchlight.cli.main import cli
from patchlight.controller.storage.state_folder import open_store


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["controller", *map(str, words)])


def test_a_backup_of_a_controller_in_use_is_restored_and_goes_on(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    again = tmp_path / "again"
    file = tmp_path / "b.tgz"
    store = open_store(state)
    number = store.prepared_intent(0, {"why": "first"})()
    store.update_reconfiguration(number, "committed", {"why": "first"})
    assert (
        run("backup", file, "--lab", "ofc2022", "--state", state).exit_code
        == 0
    )
    assert file.stat().st_mode & 0o077 == 0
    twice = run("backup", file, "--lab", "ofc2022", "--state", state)
    assert twice.exit_code != 0
    store.prepared_intent(0, {"why": "after the backup"})()
    store.close()
    assert run("restore", file, "--state", again).exit_code == 0
    restored = open_store(again)
    assert [row.why for row in restored.reconfigurations()] == ["first"]
    assert restored.prepared_intent(0, {"why": "next"})() == number + 1
    restored.close()
    assert "name: ofc2022" in (again / "lab.yaml").read_text()
    assert run("restore", file, "--state", again).exit_code != 0, (
        "it is not empty"
    )


def test_what_is_no_state_and_no_backup_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "b.tgz"
    assert (
        run(
            "backup", file, "--lab", "ofc2022", "--state", tmp_path / "none"
        ).exit_code
        != 0
    )
    assert not file.exists()
    file.write_text("no archive")
    assert run("restore", file, "--state", tmp_path / "new").exit_code != 0
    assert not (tmp_path / "new").exists()
