"""Locks on devices: who holds one is seen, and nobody else can put something in their place."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from patchlight.controller.circuits import registry as locks
from patchlight.controller.circuits.registry import (
    CONTROLLER,
    DIRECT,
    DeviceLocked,
    device_lock,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import CircuitSwitch
from tests.support.emulated_devices import ROOT
from tests.support.waiting import PATIENCE_S

SWITCH = CircuitSwitch("ocs1", "calient-tl1", "192.0.2.7:3082", 16)
NOBODY = 65534
HOLD = """
import sys
from pathlib import Path
from patchlight.controller.circuits import registry as locks
from patchlight.testbed.lab.model import CircuitSwitch
locks.ROOT_FOLDER, locks.USER_FOLDERS = Path(sys.argv[1]), Path(sys.argv[2])
switch = CircuitSwitch("ocs1", "calient-tl1", "192.0.2.7:3082", 16)
try:
    with locks.device_lock([switch], locks.DIRECT):
        print("held", flush=True)
        sys.stdin.read()
except locks.PatchlightError as error:
    print(type(error).__name__, error.message)
"""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folders of locks that no other test and no controller uses; anybody may look."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        monkeypatch.setattr(locks, "ROOT_FOLDER", folder / "locks")
        monkeypatch.setattr(locks, "USER_FOLDERS", folder / "user")
        for user in {os.geteuid(), NOBODY} - {0}:
            own = folder / "user" / str(user)
            own.mkdir(mode=0o700, parents=True)
            if os.geteuid() == 0:
                os.chown(own, user, user)
        yield folder


@pytest.fixture
def lock_file(machine: Path) -> Path:
    """The lock of ``SWITCH``, which nobody holds."""
    with device_lock([SWITCH], "a test"):
        (path,) = machine.rglob("*.lock")
    return path


def test_a_controller_with_its_own_folder_of_locks_meets_no_other(
    tmp_path: Path,
) -> None:
    apart = tmp_path / "apart"
    apart.mkdir()
    with (
        device_lock([SWITCH], CONTROLLER, tmp_path),
        device_lock([SWITCH], CONTROLLER, apart),
        pytest.raises(DeviceLocked, match="in use by the controller"),
        device_lock([SWITCH], DIRECT, tmp_path),
    ):
        pass


def hold(holder: str = "a test") -> None:
    """Hold the device for a moment."""
    with device_lock([SWITCH], holder):
        return


@contextmanager
def held_by_nobody(machine: Path) -> Iterator[str]:
    """The user nobody holds the device, if that is possible; what came of it."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            HOLD,
            str(machine / "locks"),
            str(machine / "user"),
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate(timeout=PATIENCE_S)


def test_a_device_is_held_once(lock_file: Path) -> None:
    with device_lock([SWITCH], "a test"):
        with pytest.raises(
            DeviceLocked, match=r"in use by a test \(pid \d+\)"
        ):
            hold(DIRECT)
        assert lock_file.stat().st_mode & 0o077 == 0
    with device_lock([SWITCH], DIRECT):
        locks.refuse_beside([SWITCH], CONTROLLER)
        with pytest.raises(DeviceLocked):
            locks.refuse_beside([SWITCH], DIRECT)


@pytest.mark.parametrize(
    "put",
    [
        lambda path: os.mkfifo(path),
        lambda path: path.mkdir(),
        lambda path: path.symlink_to(path.with_name("elsewhere")),
        lambda path: path.symlink_to("/dev/zero"),
    ],
    ids=["fifo", "folder", "dangling link", "link to a device"],
)
def test_what_is_no_file_is_said(
    lock_file: Path, put: Callable[[Path], None]
) -> None:
    lock_file.unlink()
    put(lock_file)
    with pytest.raises(PatchlightError, match="locking ocs1 with") as caught:
        hold()
    assert str(lock_file) in (caught.value.hint or "")


def test_a_folder_in_which_others_can_make_files_is_not_used(
    lock_file: Path,
) -> None:
    lock_file.parent.chmod(0o777)
    with pytest.raises(PatchlightError, match="a private folder"):
        hold()


@pytest.mark.root
@pytest.mark.others
def test_root_and_a_user_see_one_another(
    machine: Path, lock_file: Path
) -> None:
    with held_by_nobody(machine) as came:
        assert came == "held"
        with pytest.raises(
            DeviceLocked, match=r"--direct \(pid \d+\), run by nobody"
        ):
            hold(f"{CONTROLLER} x")
        with pytest.raises(DeviceLocked):
            locks.refuse_beside([SWITCH], DIRECT)
    with (
        device_lock([SWITCH], f"{CONTROLLER} x"),
        held_by_nobody(machine) as came,
    ):
        assert came.startswith(
            "DeviceLocked ocs1 at 192.0.2.7:3082 is in use by"
        )
        assert came.endswith(f"(pid {os.getpid()}), run by root")
    # A user can neither put something in root's place nor lock root's file.
    for code in (
        f"open({str(lock_file)!r})",
        f"import os; os.mkfifo({str(lock_file.with_name('x'))!r})",
        f"import os; os.rename({str(lock_file)!r}, '/tmp/x')",
    ):
        done = subprocess.run(
            [sys.executable, "-c", code],
            user=NOBODY,
            group=NOBODY,
            capture_output=True,
            text=True,
        )
        assert "PermissionError" in done.stderr
    hold()
