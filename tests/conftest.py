"""What each marked test needs, and a look at what the tests left behind.

A test marked ``root``, ``ovs`` or ``docker`` is skipped with the reason where its need
is not met. Under CI (``CI=true``) it fails instead: there a skip would be a check that silently
stopped being made. A test that finds out on the way that the machine cannot do a thing at all
(a kernel module that is not there) calls ``pytest.skip`` itself.
"""

import functools
import gc
import json
import os
import re
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Generator
from multiprocessing import active_children, forkserver, resource_tracker
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from patchlight.emulation.fabric.lab_state import DISK_ROOT
from patchlight.emulation.fabric.processes import close_nurseries
from patchlight.emulation.servers.server import GROUPS, OURS
from patchlight.testbed.linux import docker_engine
from patchlight.testbed.linux.processes import (
    ancestors,
    command_line,
    environment,
    process_ids,
)
from tests.support.data import data_set, without
from tests.support.house import ROOT, absent_wings, wings_used_by

# On machines that are busy with other tests slow is not wrong.
settings.register_profile("patchlight", deadline=None)
settings.load_profile("patchlight")

NAMESPACES = Path("/run/netns")
LABS = Path("/run/patchlight")
# Children inherit it, so that a process can be told to be ours whatever became of its parent.
MARK = "PATCHLIGHT_TEST_SESSION"
BEFORE = pytest.StashKey[set[str]]()
GRACE_S = float(os.environ.get("PATCHLIGHT_TEST_GRACE_S", "60"))


@functools.cache
def _no_root() -> str | None:
    return None if os.geteuid() == 0 else "not root: run 'sudo make test'"


@functools.cache
def _no_ovs() -> str | None:
    missing = [
        n
        for n in ("ovs-vswitchd", "ovsdb-server", "ovs-vsctl")
        if not shutil.which(n)
    ]
    return (
        f"no {', '.join(missing)}: apt install openvswitch-switch"
        if missing
        else None
    )


@functools.cache
def _no_docker() -> str | None:
    url = docker_engine.engine_url()
    # An engine elsewhere, chosen by hand, is believed to be there.
    if not url.startswith("unix://") or docker_engine.answers():
        return None
    return f"no Docker engine at {url}: 'make test' starts one"


@functools.cache
def _no_prometheus() -> str | None:
    missing = [
        name for name in ("prometheus", "promtool") if not shutil.which(name)
    ]
    return (
        f"no {', '.join(missing)}: apt install prometheus" if missing else None
    )


@functools.cache
def _no_browser() -> str | None:
    return (
        None
        if shutil.which("chromium")
        else "no chromium: apt install chromium"
    )


@functools.cache
def _no_snmp() -> str | None:
    missing = [
        name
        for name in ("snmpd", "lldpd")
        if not shutil.which(f"/usr/sbin/{name}")
    ]
    return (
        f"no {', '.join(missing)}: apt install {' '.join(missing)}"
        if missing
        else None
    )


@functools.cache
def _no_slurm() -> str | None:
    missing = [
        name
        for name in ("slurmctld", "slurmd", "munged")
        if not shutil.which(name)
    ]
    return (
        f"no {', '.join(missing)}: deploy/bootstrap.sh --slurm"
        if missing
        else None
    )


def _no_way_in() -> str | None:
    closed = [
        folder for folder in ROOT.parents if not folder.stat().st_mode & 0o001
    ]
    return (
        f"other users cannot enter {closed[-1]}: clone elsewhere"
        if closed
        else None
    )


NEEDS: dict[str, Callable[[], str | None]] = {
    "root": _no_root,
    "others": _no_way_in,
    "ovs": _no_ovs,
    "docker": _no_docker,
    "snmp": _no_snmp,
    "prometheus": _no_prometheus,
    "slurm": _no_slurm,
    "browser": _no_browser,
}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Where a wing of the source is not there, neither are the tests that import it."""
    ours = collection_path.suffix == ".py" and collection_path.is_relative_to(
        ROOT
    )
    # Most often none: then no test has to be read for what it imports.
    absent = absent_wings()
    return (
        True
        if ours and absent and absent & wings_used_by(collection_path)
        else None
    )


def _under_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("true", "1")


def _is_worker(config: pytest.Config) -> bool:
    """Whether this process runs tests for another one (pytest-xdist)."""
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    # What a script starts in the background ignores them, and so would what the tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if not _is_worker(config):
        os.environ[MARK] = uuid.uuid4().hex
        config.stash[BEFORE] = _labs_made()


# Whole labs that train and measure, one after the other; what is smaller runs beside them.
_GROUPS = {
    "labs": ("tests/integration/", "tests/emulation/experiments/"),
    "agents": ("tests/agents/",),
    "servers": ("tests/deploy/", "tests/emulation/servers/"),
}


class GroupsStayTogether(LoadScopeScheduling):  # type: ignore[misc]
    """One process runs all tests of a group: of xdist_group, or those that need the machine.

    xdist's own loadgroup writes the group into a test's id, which pytest 9.2 makes anew each time.
    """

    @functools.cached_property
    def _groups(self) -> dict[str, str]:
        return dict(json.loads(_groups_file().read_text()))

    def _split_scope(self, nodeid: str) -> str:
        return self._groups.get(nodeid, nodeid)

    def mark_test_complete(
        self, node: Any, item_index: int, duration: float = 0
    ) -> None:
        super().mark_test_complete(node, item_index, duration)
        # xdist would look through all that was ever done at the end of each test.
        scope = self._split_scope(
            self.registered_collections[node][item_index]
        )
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(
    config: pytest.Config, log: Any
) -> LoadScopeScheduling:
    return GroupsStayTogether(config, log)


def _groups_file() -> Path:
    return (
        Path(tempfile.gettempdir())
        / f"patchlight-groups-{os.environ[MARK]}.json"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without looking for garbage: what that makes stays to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()  # nor is it looked through again and again while the tests run
        # Nor for what 700 new objects may have left behind.
        gc.set_threshold(20_000, 20, 20)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Histories first: begun last, one process would play them while the others are idle."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/simulation"))


@pytest.hookimpl(tryfirst=True)  # before xdist says that this process is ready
def pytest_collection_finish(session: pytest.Session) -> None:
    """Tell the process that shares the tests out which of them stay together."""
    if not _is_worker(session.config):
        return
    groups = {
        item.nodeid: group
        for item in session.items
        if (group := _group_of(item))
    }
    written = _groups_file().with_suffix(f".{os.getpid()}")
    written.write_text(json.dumps(groups))
    written.replace(_groups_file())


def _group_of(item: pytest.Item) -> str:
    if any(item.get_closest_marker(name) for name in NEEDS):
        named = (
            group
            for group, parts in _GROUPS.items()
            if item.nodeid.startswith(parts)
        )
        return next(named, "machine")
    marker = item.get_closest_marker("xdist_group")
    return str(marker.args[0]) if marker else ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    lacking = [
        reason
        for marker, need in NEEDS.items()
        if item.get_closest_marker(marker) and (reason := need())
    ]
    if lacking and _under_ci():
        pytest.fail(
            f"CI must be able to run this: {'; '.join(lacking)}", pytrace=False
        )
    if lacking:
        pytest.skip("; ".join(lacking))


def _data_set(name: str) -> Path:
    path = data_set(name)
    if path is None:
        pytest.skip(without(name))
    return path


@pytest.fixture(scope="session")
def pipedream() -> Path:
    return _data_set("pipedream")


@pytest.fixture(scope="session")
def philly() -> Path:
    return _data_set("traces/philly.csv")


@pytest.fixture(scope="session")
def docker_host() -> str:
    if reason := _no_docker():
        pytest.skip(reason)
    return docker_engine.engine_url()


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what by itself takes a process for each core: it has none to start, and import all in."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what looks at no plot: its files are there, but empty. Drawing is most of a short run."""
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig",
        lambda self, file, **_: Path(file).touch(),
    )


def _labs_made() -> set[str]:
    spaces = NAMESPACES.glob("pl.*") if NAMESPACES.is_dir() else ()
    folders = LABS.glob("[!.]*") if LABS.is_dir() else ()
    disks = DISK_ROOT.iterdir() if DISK_ROOT.is_dir() else ()
    groups = GROUPS.glob(f"*/{OURS}/*/") if GROUPS.is_dir() else ()
    made = {f"namespace {path.name}" for path in spaces}
    return made | {f"folder {path}" for path in (*folders, *disks, *groups)}


def _is_strangers(
    made: str, strangers: list[int], commands: list[str]
) -> bool:
    """Whether a lab is one that somebody else is running meanwhile."""
    if any(int(number) in strangers for number in re.findall(r"\d+", made)):
        return True  # named after a process that is not ours
    name = made.rpartition("/")[2] if "/" in made else made.split(".")[1]
    return any(
        f"/{name}/" in command or f"pl.{name}." in command
        for command in commands
    )


def _left_behind(before: set[str]) -> list[str]:
    strangers = []
    commands = []
    left = []
    mark = f"{MARK}={os.environ[MARK]}"
    for pid in set(process_ids()) - ancestors():
        if not (command := command_line(pid)):
            continue
        if mark in environment(pid):
            left.append(f"process {pid}: {command}")
        else:
            strangers.append(pid)
            commands.append(command)
    made = sorted(_labs_made() - before)
    return left + [
        each for each in made if not _is_strangers(each, strangers, commands)
    ]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails the session if a process, namespace or lab folder outlives the tests."""
    # The server that it was forked from would wait for one that goes on, without end.
    forgotten = [f"process {process.pid}" for process in active_children()]
    for process in active_children():
        process.kill()
        process.join()
    # Python keeps a process that tracks semaphores until it ends itself: end it here.
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    close_nurseries()
    if _is_worker(session.config):
        return
    _groups_file().unlink(missing_ok=True)
    deadline = time.monotonic() + GRACE_S
    while (
        left := _left_behind(session.config.stash[BEFORE])
    ) and time.monotonic() < deadline:
        time.sleep(0.1)  # namespaces and killed processes go asynchronously
    if left := [*forgotten, *left]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        session.config.hook.pytest_runtest_logreport(
            report=pytest.TestReport(
                nodeid="tests/conftest.py::pytest_sessionfinish",
                location=(
                    "tests/conftest.py",
                    None,
                    "what the tests left behind",
                ),
                keywords={},
                outcome="failed",
                longrepr="the tests left behind: " + "; ".join(left),
                when="teardown",
            )
        )


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int
) -> None:
    """Under CI, name each failed test on a line, for ``tests/run_parts.py --again``."""
    if not _under_ci() or exitstatus != pytest.ExitCode.TESTS_FAILED:
        return
    for kind in ("failed", "error"):
        for report in terminalreporter.stats.get(kind, ()):
            terminalreporter.write_line(
                f"failed-test: {report.when} {report.nodeid}"
            )
