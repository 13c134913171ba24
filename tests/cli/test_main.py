"""The ``patchlight`` command as a whole: help, errors, exit codes."""

import os
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import click
import pytest

from patchlight.cli import main as command_line
from patchlight.console.commands import CrashReport, kept, report, require_root
from patchlight.console.shared import Command, SharedOption
from patchlight.testbed.errors import (
    FileIssue,
    OutcomeUnknown,
    PatchlightError,
)
from patchlight.testbed.labfile.reader import LabFileError
from tests.support.programs import ROOT, patchlight, python
from tests.support.waiting import PATIENCE_S


def test_help_lists_every_command() -> None:
    result = patchlight("--help")
    assert result.returncode == 0
    for name, command in command_line.COMMANDS.items():
        assert name in result.stdout
        assert command.about in result.stdout


@pytest.mark.wings
def test_commands_are_listed_and_names_completed_without_a_client_of_the_controller() -> (
    None
):
    code = (
        "import sys\nfrom patchlight.cli.main import main\n"
        "for noun in ('ocs', 'controller', 'lab', 'policy', 'simulate'):\n"
        "    try: main([noun, '--help'])\n    except SystemExit as end: assert not end.code\n"
        "print(sorted({'httpx', 'pydantic', 'numpy'} & set(sys.modules)))\n"
    )
    result = python("-c", code)
    assert result.returncode == 0
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("program", "unneeded"),
    [
        (
            "main(['--help'])",
            "rich matplotlib numpy fastapi pyroute2 docker yaml patchlight.cli.lab",
        ),
        ("main(['--version'])", "rich yaml numpy"),
        ("main(['policy', 'show'])", "scipy.optimize matplotlib torch"),
        ("main(['lab', 'show', 'ofc2022'])", "numpy httpx matplotlib"),
        (
            "import patchlight.agents.api, patchlight.agents.workers.process",
            "docker httpx numpy pyroute2",
        ),
        (
            "import patchlight.controller.service",
            "cryptography fastapi uvicorn",
        ),
    ],
)
def test_what_is_not_needed_is_not_imported(
    program: str, unneeded: str
) -> None:
    code = (
        "import sys\nfrom patchlight.cli.main import main\n"
        f"try: {program}\nexcept SystemExit as end: assert not end.code\n"
        f"print([name for name in {unneeded.split()} if name in sys.modules])\n"
    )
    result = python("-c", code)
    assert (result.returncode, result.stdout.splitlines()[-1]) == (0, "[]")


def test_a_lab_is_checked_from_the_shell(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("")
    result = patchlight("lab", "check", str(bad))
    assert result.returncode == 2
    assert result.stdout.startswith(
        f"{bad}:1:1: the file is empty: expected a lab"
    )
    assert result.stderr == ""
    assert patchlight("lab", "check", "ofc2022").returncode == 0


def test_other_commands_print_mistakes_to_standard_error(
    tmp_path: Path,
) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("")
    result = patchlight("lab", "show", str(bad))
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"{bad}:1:1: ")


def test_the_version_is_printed() -> None:
    result = patchlight("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("patchlight ")


def test_an_unknown_command_brings_the_nearest() -> None:
    result = patchlight("emulat")
    assert result.returncode == 2
    unknown = "patchlight has no command 'emulat': did you mean 'emulate'?"
    assert result.stderr == f"patchlight: {unknown}\n"


def test_an_unknown_option_is_bad_input() -> None:
    result = patchlight("lab", "show", "--zzzz")
    assert result.returncode == 2
    said = "patchlight: no such option '--zzzz'\n  see: patchlight lab show --help\n"
    assert result.stderr == said


def test_shared_options_are_described_once() -> None:
    about = "The lab, by name or file"
    assert patchlight("--help").stdout.count(about) == 1
    assert "Talk to the device" in patchlight("ocs", "--help").stdout
    said = patchlight("ocs", "show", "--help").stdout
    assert "--controller, --json, --lab, --wide" in said
    assert "see patchlight ocs --help" in said
    assert about not in said


def test_a_reader_that_goes_is_no_error() -> None:
    result = subprocess.run(
        f"{shlex.quote(sys.executable)} -m patchlight lab generate single --servers 5000 | head -1",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
    )
    assert result.stdout == "name: single5000\n"
    assert result.stderr == ""


def shell(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a line in which ``patchlight`` is the command."""
    return subprocess.run(
        [
            "bash",
            "-o",
            "pipefail",
            "-c",
            line.replace(
                "patchlight", f"{shlex.quote(sys.executable)} -m patchlight"
            ),
        ],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=PATIENCE_S,
        cwd=ROOT,
        env={**os.environ, **variables},
    )


@pytest.mark.parametrize(
    "words", ["lab show ring16", "lab show ring16 --json", "policy show"]
)
def test_a_reader_that_goes_at_once_is_none_either(words: str) -> None:
    result = shell(f"patchlight {words} | true", PYTHONUNBUFFERED="1")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    "words", ["lab show ofc2022", "lab show ofc2022 --json", "--help"]
)
def test_a_full_disk_is_no_bug(words: str) -> None:
    result = shell(f"patchlight {words} > /dev/full", PYTHONUNBUFFERED="")
    assert result.returncode == 1
    assert result.stderr.startswith(
        "patchlight: could not continue: No space left on device\n"
    )
    assert "bug" not in result.stderr


def test_closed_streams_are_empty_ones() -> None:
    assert shell("patchlight lab show ofc2022 >&-").returncode == 0
    assert shell("patchlight lab check nothing.yaml 2>&-").returncode == 2
    result = shell("patchlight job submit - --dry-run <&-")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("standard input:1:1: the file is empty")


ASCII = {
    "LC_ALL": "C",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "PYTHONIOENCODING": "ascii",
}


def test_a_locale_without_utf_8_takes_no_output_away(tmp_path: Path) -> None:
    table = shell("patchlight lab show ofc2022", **ASCII)
    assert (table.returncode, table.stderr) == (0, "")
    assert r"1 \xd7 Tesla M40" in table.stdout
    written = tmp_path / "lab.yaml"
    written.write_text(
        (ROOT / "testbed/labs/ofc2022.yaml")
        .read_text()
        .replace("Titan V", "Titän")
    )
    shown = shell(f"patchlight lab show {written} --json", **ASCII)
    assert "Titän" in shown.stdout


@pytest.mark.root
def test_a_user_without_a_home_needs_none_to_ask_a_controller(
    tmp_path: Path,
) -> None:
    away = f"patchlight status --controller unix:{tmp_path}/nobody.sock"
    result = shell(
        f"unshare --map-user=54321 env -u HOME -u XDG_CONFIG_HOME {away}"
    )
    assert "no answer from a controller" in result.stderr
    (tmp_path / "patchlight").mkdir(mode=0o000)
    other = shell(
        f"unshare --map-user=54321 {away}", XDG_CONFIG_HOME=str(tmp_path)
    )
    assert "no answer from a controller" in other.stderr


def run_with(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, *before: str
) -> int | str | None:
    """Run a command that ends with ``error``."""

    @click.command()
    def fails() -> None:
        raise error

    module = types.ModuleType("patchlight_test_command")
    module.fails = fails  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    command = Command(module.__name__, "Fail.")
    monkeypatch.setattr(command_line.cli, "built_in", {"fails": command})
    monkeypatch.delenv("PATCHLIGHT_DEBUG", raising=False)
    with pytest.raises(SystemExit) as caught:
        command_line.main([*before, "fails"])
    return caught.value.code


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (PatchlightError("no", hint="do so"), 1, "patchlight: no\n  do so\n"),
        (OutcomeUnknown("no answer"), 3, "patchlight: no answer\n"),
        (LabFileError([FileIssue("f", 2, 3, "bad")]), 2, "f:2:3: bad\n"),
        (KeyboardInterrupt(), 130, "patchlight: interrupted\n"),
        (SystemExit(7), 7, ""),
        (SystemExit("stopped"), 1, "stopped\n"),
        (
            click.UsageError("Wrong."),
            2,
            "patchlight: wrong\n  see: patchlight fails --help\n",
        ),
    ],
)
def test_errors_end_with_their_own_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    printed: str,
) -> None:
    assert run_with(monkeypatch, error) == code
    assert capsys.readouterr().err.endswith(printed)


def test_a_bug_says_how_to_get_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_with(monkeypatch, ZeroDivisionError("by zero")) == 1
    said = capsys.readouterr().err
    assert said.startswith(
        "patchlight: unexpected ZeroDivisionError: by zero\n"
    )
    assert "patchlight --debug" in said
    assert "Traceback" not in said
    assert run_with(monkeypatch, ZeroDivisionError("by zero"), "--debug") == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_command_that_is_not_installed_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = {"gone": Command("patchlight.cli.gone", "Be gone.")}
    monkeypatch.setattr(command_line.cli, "built_in", commands)
    with pytest.raises(SystemExit):
        command_line.main(["--help"])
    assert "Be gone." in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        command_line.main(["gone"])
    assert caught.value.code == 1
    assert (
        "patchlight gone is not part of this installation"
        in capsys.readouterr().err
    )


def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "needs_much.py").write_text("import not_there.at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    commands = {"much": Command("needs_much", "Need much.")}
    monkeypatch.setattr(command_line.cli, "built_in", commands)
    with pytest.raises(SystemExit) as caught:
        command_line.main(["much"])
    assert caught.value.code == 1
    said = capsys.readouterr().err
    assert (
        "patchlight much needs the Python package not_there, which is not installed"
        in said
    )
    assert (
        f"install it: {shlex.quote(sys.executable)} -m pip install not_there"
        in said
    )


def test_a_package_that_is_missed_while_a_command_runs_is_no_bug(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def said(*modules: str) -> str:
        error = ModuleNotFoundError(
            f"No module named {modules[0]!r}", name=modules[0]
        )
        assert report(error, CrashReport()) == 1
        return capsys.readouterr().err

    assert "needs the Python package httpx, which is not installed" in said(
        "httpx"
    )
    assert "-m pip install httpx\n" in said("httpx._client")
    assert "-m pip install PyYAML\n" in said("yaml")
    assert "-m pip install 'patchlight[telemetry]'\n" in said(
        "opentelemetry.sdk"
    )
    assert "this is a bug in Patchlight" in said("patchlight.cli.gone")


def test_what_needs_root_says_so_and_what_to_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(
        sys, "argv", ["patchlight", "emulate", "up", "my lab.yaml"]
    )
    with pytest.raises(PatchlightError) as caught:
        require_root("building a lab")
    # Root's PATH does not lead into a virtual environment.
    program = shlex.quote(str(Path(sys.executable).with_name("patchlight")))
    assert str(caught.value) == (
        f"building a lab needs root\n  run: sudo {program} emulate up 'my lab.yaml'"
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    require_root("building a lab")


def every_command(
    group: click.Group, *names: str
) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from every_command(command, *names, name)
        else:
            yield " ".join((*names, name)), command


@pytest.mark.wings
def test_every_lab_option_is_the_same_one() -> None:
    options = {
        name: parameter
        for name, command in every_command(command_line.cli)
        for parameter in command.params
        if "--lab" in parameter.opts
    }
    for name in (
        "emulate link",
        "emulate tune",
        "emulate capture",
        "emulate fault",
        "simulate",
    ):
        assert name in options
    for name, option in options.items():
        assert type(option) is SharedOption, name
        assert (option.envvar, option.show_envvar) == (
            "PATCHLIGHT_LAB",
            True,
        ), name


@pytest.mark.wings
def test_a_lab_of_the_environment_gives_way_to_options_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATCHLIGHT_LAB", "ofc2022")
    simulate = dict(every_command(command_line.cli))["simulate"]
    for words, lab in (
        ([], "ofc2022"),
        (["--network", "fat-tree:k=4"], None),
        (["--cluster", "1x2x2"], None),
        (["--lab", "mine"], "mine"),
    ):
        assert (
            simulate.make_context("simulate", list(words)).params["lab"] == lab
        )
    with pytest.raises(click.UsageError, match="exclude each other"):
        simulate.make_context(
            "simulate", ["--cluster", "1x2x2", "--lab", "mine"]
        )
    monkeypatch.setenv("PATCHLIGHT_LAB", "ofc2022")
    listing = dict(every_command(command_line.cli))["job list"]
    context = listing.make_context("list", ["--controller", "b:1"])
    assert (context.params["lab_name"], context.params["address"]) == (
        None,
        "b:1",
    )


def test_an_answer_is_kept_until_a_file_of_its_packages_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "kept_package"
    cache = tmp_path / "cache"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("SUDO_UID", raising=False)
    numbers = count()

    def answer() -> int:
        return int(kept("numbers", ["kept_package"], lambda: next(numbers)))

    assert (answer(), answer()) == (0, 0)
    (package / "more.py").write_text("x = 1\n")
    assert (answer(), answer()) == (1, 1)
    (cache / "patchlight" / "numbers.json").write_text("no JSON")
    assert answer() == 2
    monkeypatch.setenv("SUDO_UID", "1000")
    assert (answer(), answer()) == (3, 4)
