"""The promises of tests/conftest.py: honest skips, and nothing left behind."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_session(folder: Path, test: str, **environment: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "tests/conftest.py", folder)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "test_it.py").write_text(test)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_it.py"],
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
