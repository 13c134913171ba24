"""What tests/conftest.py and tests/run_parts.py promise."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent


def run_session(
    folder: Path, test: str, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "tests/conftest.py", folder)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "test_it.py").write_text(test)
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            *options,
            "test_it.py",
        ],
        cwd=folder,
        env={**os.environ, "CI": "", "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


NEEDS_DOCKER = "import pytest\n@pytest.mark.docker\ndef test_it(): pass\n"
NO_ENGINE = "unix:///nowhere/docker.sock"


def test_what_cannot_run_is_skipped_with_the_reason(tmp_path: Path) -> None:
    done = run_session(tmp_path, NEEDS_DOCKER, DOCKER_HOST=NO_ENGINE)
    assert done.returncode == 0, done.stdout
    assert f"no Docker engine at {NO_ENGINE}" in done.stdout
    assert "1 skipped" in done.stdout


def test_what_cannot_run_under_ci_fails(tmp_path: Path) -> None:
    done = run_session(
        tmp_path, NEEDS_DOCKER, DOCKER_HOST=NO_ENGINE, CI="true"
    )
    assert done.returncode == 1
    assert "CI must be able to run this: no Docker engine at" in done.stdout


def test_one_process_runs_all_that_need_the_machine(tmp_path: Path) -> None:
    test = (
        "import os, time, pytest\n"
        "@pytest.mark.root\n"
        "@pytest.mark.parametrize('n', range(6))\n"
        "def test_machine(n): note('machine')\n"
        "@pytest.mark.parametrize('n', range(6))\n"
        "def test_other(n): note('other')\n"
        "def note(kind):\n"
        "    time.sleep(0.05)  # or one process runs all before the other has begun\n"
        f"    open(f'{tmp_path}/{{kind}}-{{os.getpid()}}', 'w').close()\n"
    )
    done = run_session(tmp_path, test, "--numprocesses=2")
    assert done.returncode == 0, done.stdout
    if os.geteuid() == 0:  # as nobody else they are skipped
        assert len(list(tmp_path.glob("machine-*"))) == 1
    assert list(tmp_path.glob("other-*"))


def test_a_process_that_outlives_the_tests_fails_the_session(
    tmp_path: Path,
) -> None:
    # A daemon: in a session of its own, its parent gone.
    test = (
        "import subprocess\n"
        "def test_it():\n"
        "    subprocess.run('setsid sleep 4711 >/dev/null 2>&1 & sleep 0.2', shell=True)\n"
    )
    done = run_session(tmp_path, test, PATCHLIGHT_TEST_GRACE_S="0.5")
    found = re.search(
        r"the tests left behind: process (\d+): .*sleep 4711", done.stdout
    )
    if found:
        os.kill(int(found[1]), signal.SIGKILL)
    assert found, done.stdout
    assert done.returncode == 1


def test_a_quiet_session_passes(tmp_path: Path) -> None:
    test = "import subprocess\ndef test_it():\n    subprocess.run(['true'], check=True)\n"
    assert run_session(tmp_path, test).returncode == 0


def run_parts(
    folder: Path, *arguments: str, test: str = ""
) -> subprocess.Popen[str]:
    """Start parts of a Makefile in ``folder``; ``suite`` is a run of pytest."""
    for name in ("tests/conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    (folder / "test_it.py").write_text(test)
    (folder / "Makefile").write_text(
        "suite:\n"
        f"\t'{sys.executable}' -m pytest -p no:cacheprovider $(or $(PYTEST_ARGS),-n2 test_it.py)\n"
        "good:\n\techo good ran\n"
        "bad:\n\tfalse\n"
        "long:\n\techo begun; exec sleep 60\n"
        # As a machine behind a pipe, a daemon, and one that does not end by SIGTERM.
        "deep:\n\t(sleep 4721 | cat) & setsid -f sleep 4722; trap '' TERM; echo begun; "
        "while :; do sleep 4723; done\n"
    )
    return subprocess.Popen(
        [sys.executable, ROOT / "tests/run_parts.py", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "CI": "true",
            "PYTHONPATH": str(ROOT),
            "MAKEFLAGS": "",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


# Tests that fail as often as their parameter says, with a parameter that shells would change.
FAILING = """
import pathlib, pytest
@pytest.mark.parametrize("price, often", {often})
def test_it(price, often):
    ran = pathlib.Path(f"ran-{{price.encode().hex()}}")
    ran.write_text(ran.read_text() + "x" if ran.exists() else "x")
    assert len(ran.read_text()) > often, f"run number {{len(ran.read_text())}}"
"""


def test_a_part_that_fails_keeps_no_other_from_running(tmp_path: Path) -> None:
    parts = run_parts(
        tmp_path, "bad,good", "good+suite", test="def test_it(): pass"
    )
    output, _ = parts.communicate()
    assert parts.returncode == 1
    assert "1 passed" in output
    assert output.count("\ngood ran") == 2
    assert re.search(
        r"bad,good: FAILED \(2\) in \d s\ngood: passed in \d s\nsuite: passed in \d+ s\n$",
        output,
    )


def test_a_test_that_fails_by_chance_is_named_with_both_runs(
    tmp_path: Path,
) -> None:
    test = FAILING.format(often=[("5 $HOME - 'a' \"b\" #c", 1), ("good", 0)])
    parts = run_parts(tmp_path, "--again", "good+suite", test=test)
    output, _ = parts.communicate()
    assert parts.returncode == 0, output
    assert "--- of suite\n" in output
    named = output.partition(
        "=== by chance: test_it.py::test_it[5 $HOME - 'a' \"b\" #c-1] "
    )[2]
    assert (
        "AssertionError: run number 1"
        in named.partition("--- the second run:")[0]
    )
    assert "1 passed in" in named.partition("--- the second run:")[2]
    assert re.fullmatch(
        r"=== 2 passed, 1 rerun in [0-9.]+s ===", output.splitlines()[-1]
    )


@pytest.mark.parametrize(
    ("often", "said"),
    [
        ([("a", 2), ("b", 1)], "2 failed"),
        ([("a", 1), ("b", 1), ("c", 1)], "3 failed"),
    ],
    ids=["one-that-fails-again", "three-by-chance"],
)
def test_a_test_that_fails_again_or_a_third_by_chance_fails_the_run(
    tmp_path: Path, often: list[tuple[str, int]], said: str
) -> None:
    parts = run_parts(
        tmp_path, "--again", "good", "suite", test=FAILING.format(often=often)
    )
    output, _ = parts.communicate()
    assert parts.returncode == 1, output
    assert "by chance: test_it.py::test_it[b-1]" in output
    assert re.fullmatch(rf"=+ {said} in [0-9.]+s =+", output.splitlines()[-1])


def test_only_with_again_does_a_test_run_twice(tmp_path: Path) -> None:
    parts = run_parts(tmp_path, "suite", test=FAILING.format(often=[("a", 1)]))
    output, _ = parts.communicate()
    assert parts.returncode == 1, output
    assert len(next(tmp_path.glob("ran-*")).read_text()) == 1


@pytest.mark.parametrize("to_all", [True, False], ids=["ctrl-c", "terminated"])
def test_parts_can_be_stopped_wholly(tmp_path: Path, to_all: bool) -> None:
    parts = run_parts(tmp_path, "long", "good")
    assert parts.stdout is not None
    while "begun" not in (line := parts.stdout.readline()) or "echo" in line:
        assert line
    if to_all:
        os.killpg(parts.pid, signal.SIGINT)
    else:
        parts.terminate()
    output, _ = parts.communicate(timeout=30)
    assert parts.returncode == 130
    assert "good" not in output


def test_all_processes_of_a_part_that_is_terminated_end(
    tmp_path: Path,
) -> None:
    parts = run_parts(tmp_path, "deep")
    assert parts.stdout is not None
    while "begun" not in (line := parts.stdout.readline()) or "echo" in line:
        assert line
    begun = {f"sleep {number}" for number in (4721, 4722, 4723)}
    wait_until(lambda: begun <= running(tmp_path))
    parts.terminate()
    began = time.monotonic()
    parts.communicate(timeout=60)
    assert parts.returncode == 130
    assert not running(tmp_path)
    assert time.monotonic() - began < 30


def running(folder: Path) -> set[str]:
    """The commands that run in a folder."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.joinpath("cwd").readlink() == folder:
                found.add(
                    process.joinpath("cmdline")
                    .read_text()
                    .replace("\0", " ")
                    .strip()
                )
    return found


def test_a_sleep_has_its_reason_beside_it() -> None:
    """What only lets others have a turn needs none, nor what runs on a simulated clock."""
    bare = []
    for path in (ROOT / "tests").rglob("*.py"):
        lines = path.read_text().splitlines()
        for number, (above, line) in enumerate(pairwise(["", *lines]), 1):
            call = re.search(r"(?<!def )\bsleep\((?!0\)).*", line)
            explained = above.lstrip().startswith("#")
            if call and "#" not in call[0] and not explained:
                bare.append(f"{path.relative_to(ROOT)}:{number}")
    assert not [each for each in bare if "/simulation/" not in each]


@pytest.mark.root
@pytest.mark.parametrize(
    "folder", ["/tmp", "/run", "/dev/shm", "/var/lib/patchlight"]
)
def test_the_virtual_machine_has_the_checkout_wherever_it_is(
    folder: str,
) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix="a checkout ", dir=folder
    ) as checkout:
        script = Path(checkout, "tests", "in-vm.sh")
        script.parent.mkdir()
        shutil.copy(ROOT / "tests/in-vm.sh", script)
        Path(checkout, ".venv", "bin").mkdir(parents=True)
        Path(checkout, ".venv", "bin", "python").symlink_to(sys.executable)
        look = ["sh", "-c", f"pwd; ls tests; ls -A {folder}"]
        done = subprocess.run(
            ["unshare", "--mount", "bash", script, "--mounted", *look],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        # The command mount keeps a folder of its own in /run.
        seen = [line for line in done.stdout.splitlines() if line != "mount"]
        assert seen == [checkout, script.name, Path(checkout).name]
        assert script.is_file()
