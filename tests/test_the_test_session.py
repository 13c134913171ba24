"""The promises of tests/conftest.py: honest skips, and nothing left behind."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_session(
    folder: Path, test: str, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "tests/conftest.py", folder)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "test_it.py").write_text(test)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "test_it.py"],
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
    done = run_session(tmp_path, NEEDS_DOCKER, DOCKER_HOST=NO_ENGINE, CI="true")
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
        "    time.sleep(0.05)\n"
        f"    open(f'{tmp_path}/{{kind}}-{{os.getpid()}}', 'w').close()\n"
    )
    done = run_session(tmp_path, test, "--numprocesses=2")
    assert done.returncode == 0, done.stdout
    if os.geteuid() == 0:  # as nobody else they are skipped
        assert len(list(tmp_path.glob("machine-*"))) == 1
    assert list(tmp_path.glob("other-*"))


def test_a_process_that_outlives_the_tests_fails_the_session(tmp_path: Path) -> None:
    # A daemon: in a session of its own, its parent gone.
    test = (
        "import subprocess\n"
        "def test_it():\n"
        "    subprocess.run('setsid sleep 4711 >/dev/null 2>&1 & sleep 0.2', shell=True)\n"
    )
    done = run_session(tmp_path, test, PATCHLIGHT_TEST_GRACE_S="0.5")
    found = re.search(r"the tests left behind: process (\d+): .*sleep 4711", done.stdout)
    if found:
        os.kill(int(found[1]), signal.SIGKILL)
    assert found, done.stdout
    assert done.returncode == 1


def test_a_quiet_session_passes(tmp_path: Path) -> None:
    test = "import subprocess\ndef test_it():\n    subprocess.run(['true'], check=True)\n"
    assert run_session(tmp_path, test).returncode == 0
