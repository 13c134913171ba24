"""What each marked test needs, and a look at what the tests left behind.

A test marked ``root``, ``ovs`` or ``docker`` is skipped with the reason where its need
is not met. Under CI (``CI=true``) it fails instead: there a skip would be a check that silently
stopped being made. A test that finds out on the way that the machine cannot do a thing at all
(a kernel module that is not there) calls ``pytest.skip`` itself.
"""

import functools
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
from hypothesis import settings

from patchlight.testbed.linux import docker_engine
from patchlight.testbed.linux.processes import ancestors, command_line, environment, process_ids
from tests.support.data import data_set, without

# On machines that are busy with other tests slow is not wrong.
settings.register_profile("patchlight", deadline=None)
settings.load_profile("patchlight")

NAMESPACES = Path("/run/netns")
LABS = Path("/run/patchlight")
# Children inherit it, so that a process can be told to be ours whatever became of its parent.
MARK = f"PATCHLIGHT_TEST_SESSION={uuid.uuid4().hex}"
GRACE_S = float(os.environ.get("PATCHLIGHT_TEST_GRACE_S", "10"))


@functools.cache
def _no_root() -> str | None:
    return None if os.geteuid() == 0 else "not root: run 'sudo make test'"


@functools.cache
def _no_ovs() -> str | None:
    missing = [n for n in ("ovs-vswitchd", "ovsdb-server", "ovs-vsctl") if not shutil.which(n)]
    return f"no {', '.join(missing)}: apt install openvswitch-switch" if missing else None


@functools.cache
def _no_docker() -> str | None:
    url = docker_engine.engine_url()
    # An engine elsewhere, chosen by hand, is believed to be there.
    if not url.startswith("unix://") or docker_engine.answers():
        return None
    return f"no Docker engine at {url}: 'make test' starts one"


NEEDS = {"root": _no_root, "ovs": _no_ovs, "docker": _no_docker}


def pytest_runtest_setup(item: pytest.Item) -> None:
    lacking = [
        reason
        for marker, need in NEEDS.items()
        if item.get_closest_marker(marker) and (reason := need())
    ]
    if lacking and os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(f"CI must be able to run this: {'; '.join(lacking)}", pytrace=False)
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


def _labs_made() -> set[str]:
    spaces = NAMESPACES.glob("pl.*") if NAMESPACES.is_dir() else ()
    folders = LABS.iterdir() if LABS.is_dir() else ()
    return {f"namespace {path.name}" for path in spaces} | {f"folder {path}" for path in folders}


def _left_behind(before: set[str]) -> list[str]:
    strangers, left = [], []
    for pid in set(process_ids()) - ancestors():
        if not (command := command_line(pid)):
            continue
        if MARK in environment(pid):
            left.append(f"process {pid}: {command}")
        else:
            strangers.append(command)
    for made in sorted(_labs_made() - before):
        # A lab that somebody else is running meanwhile has processes that name it.
        name = made.rpartition("/")[2] if "/" in made else made.split(".")[1]
        if not any(f"/{name}/" in command or f"pl.{name}." in command for command in strangers):
            left.append(made)
    return left


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Fails the session if a process, namespace or lab folder outlives the tests."""
    variable, _, value = MARK.partition("=")
    os.environ[variable] = value
    before = _labs_made()
    yield
    # Python keeps a process that tracks semaphores until it ends itself: end it here.
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]
    deadline = time.monotonic() + GRACE_S
    while (left := _left_behind(before)) and time.monotonic() < deadline:
        time.sleep(0.1)  # namespaces and killed processes go asynchronously
    if left:
        pytest.fail("the tests left behind: " + "; ".join(left), pytrace=False)
