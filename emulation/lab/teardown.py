"""Finds and removes an emulated lab by its record, or else by the names and marks that all its
parts have. It needs neither running processes nor the lab file."""

import ctypes
import errno
import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from patchlight.emulation.fabric import lab_state as states
from patchlight.emulation.fabric import links
from patchlight.emulation.fabric.plan import fabric_namespace, namespace_prefix
from patchlight.emulation.servers.server import remove_groups
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.linux import (
    docker_engine,
    files,
    namespaces,
    processes,
)
from patchlight.testbed.linux.netlink import KernelRefused, Netlink

_PIDFD_GETFD = 438  # the same number on every architecture
_CLOSING_THREADS = 32
_libc = ctypes.CDLL(None, use_errno=True)
_POLITE_S = 2.0
# A busy kernel takes 20 s to close an Open vSwitch with 1,000 ports.
_DEADLINE_S = 60.0


class AlreadyThere(PatchlightError):
    """A lab of that name exists, complete or not."""


class ContainerNotRemoved(PatchlightError):
    """The Docker engine failed to remove a container of the lab."""


class NotRemoved(PatchlightError):
    """Part of a lab remains after ``down``."""


def lab_status(name: str) -> dict[str, Any]:
    """A lab's state as plain values: ``up``, ``making``, ``half-there`` (``missing`` lists the
    rest), ``down``, or ``unreadable`` if another version of Patchlight wrote it."""
    try:
        state = states.read_state(name)
    except PatchlightError as error:
        return {
            "name": name,
            "state": "unreadable",
            "missing": [error.message],
        }
    if state is None or not state.is_of_this_boot:
        return {"name": name, "state": "down", "missing": []}
    missing = missing_parts(state)
    condition = "up" if state.phase == "up" and not missing else "half-there"
    if state.phase == "making" and states.is_running(state.builder):
        condition = "making"
    return {
        "name": name,
        "state": condition,
        "missing": missing,
        "source": state.source,
        "scale": state.scale,
        "fabric": state.fabric,
        "datapath": state.datapath,
        "ssh_config": None
        if state.ssh_config is None
        else str(state.ssh_config),
        "controller_api": state.controller_api or None,
        "made_at": state.made_at,
        "run_dir": str(state.run_dir),
        "namespaces": len(state.namespaces),
        "processes": [
            {
                "name": p.name,
                "pid": p.pid,
                "running": states.is_running(p),
                "log": p.log,
            }
            for p in state.processes
        ],
    }


def missing_parts(state: states.LabState) -> list[str]:
    """Recorded parts of a lab that are gone."""
    gone = [
        f"namespace {name}"
        for name, inode in state.namespaces.items()
        if namespaces.inode(namespaces.namespace_path(name)) != inode
    ]
    return gone + [
        f"process {p.name}"
        for p in state.processes
        if not states.is_running(p)
    ]


def only_processes(missing: list[str]) -> bool:
    """Whether only processes are missing, which can be restarted."""
    return bool(missing) and all(
        part.startswith("process ") for part in missing
    )


def clear_the_way(
    lab: str,
    *,
    replace: bool,
    say: Callable[[str], None],
) -> states.LabState | None:
    """Remove a lab of that name if ``replace`` is set or the machine has rebooted; else raise
    ``AlreadyThere``. A lab that only lacks processes stays: its state is returned. The caller has
    the lock."""
    remove_forgotten_disks()
    if not is_there(lab):
        return None
    state = states.read_state(lab)
    if replace or (state is not None and not state.is_of_this_boot):
        say(f"removing the existing lab {lab}")
        remove_lab(lab)
        return None
    if state is not None and state.phase == "up" and not missing_parts(state):
        raise AlreadyThere(
            f"lab {lab} is already up",
            hint="use it, rebuild it with --replace, or choose another --name",
        )
    if (
        state is not None
        and state.phase == "up"
        and only_processes(missing_parts(state))
    ):
        return state
    raise left_half(state, lab)


def left_half(state: states.LabState | None, name: str) -> AlreadyThere:
    """The error about a lab that is unfinished or has lost parts."""
    what = ": parts with this name exist without a record"
    run = f"sudo {processes.own_program()} emulate"
    hint = (
        f"rebuild it: {run} up LAB --replace; or remove it: {run} down {name}"
    )
    if state is not None:
        missing = missing_parts(state)
        parts = ", ".join(missing[:5]) + (
            f" and {len(missing) - 5} more" if missing[5:] else ""
        )
        what = f" (missing: {parts})" if missing else " (unfinished)"
    return AlreadyThere(f"lab {name} is incomplete{what}", hint=hint)


def remove_lab(lab: str) -> bool:
    """Remove everything of a lab, or raise ``NotRemoved``; ``False`` if there was nothing."""
    directory = states.run_dir(lab)
    state = _recorded(lab)
    if state is None:
        return False
    # First, because a paused container's processes cannot be ended; and again below, because an
    # agent may be creating one.
    _remove_containers(lab, state.docker)
    # Namespaces do not survive a reboot, but Docker's containers do.
    if state.is_of_this_boot:
        inodes = set(_present_namespaces(state).values())
        if namespaces.own_inode() in inodes:
            raise NotRemoved(
                f"removing lab {lab}: this command runs inside one of its namespaces",
                hint="leave the lab's shell first",
            )
        _end_processes(state, inodes)
    _remove_containers(lab, state.docker)
    if state.is_of_this_boot:
        # Listed again: an agent may have created one for a worker.
        _end_namespaces(lab, _present_namespaces(state))
        remove_groups(lab)
    for folder in (states.disk_dir(lab), directory):
        _remove_folder(folder)
    return True


def remove_forgotten_disks() -> None:
    """Remove the disks of labs that ended at a reboot, which cleared ``/run``."""
    with suppress(FileNotFoundError):
        for folder in list(states.DISK_ROOT.iterdir()):
            # Separate disks contain lost+found.
            with suppress(BadInput):
                if not is_there(folder.name):
                    _remove_folder(folder)


def _remove_folder(folder: Path) -> None:
    files.remove_folder(folder)
    if folder.exists():
        raise NotRemoved(
            f"removing {folder}: it still exists", hint="remove it manually"
        )
    with suppress(OSError):
        folder.parent.rmdir()  # if it was the last one


def _recorded(lab: str) -> states.LabState | None:
    with suppress(PatchlightError):
        state = states.read_state(lab)
        if state is not None:
            return state
    if states.run_dir(lab).exists() or namespaces.names_with_prefix(
        namespace_prefix(lab)
    ):
        return states.new_state(lab, "", 1.0)
    return None


def is_there(lab: str) -> bool:
    """Whether anything on this machine has the names of this lab's parts."""
    return _recorded(lab) is not None


def _present_namespaces(state: states.LabState) -> dict[str, int]:
    prefix = namespace_prefix(state.lab)
    names_of_lab = {*state.namespaces, *namespaces.names_with_prefix(prefix)}
    inodes = {
        name: namespaces.inode(namespaces.namespace_path(name))
        for name in names_of_lab
    }
    return {name: inode for name, inode in inodes.items() if inode is not None}


def _end_processes(state: states.LabState, inodes: set[int]) -> None:
    for process in state.processes:
        if process.abrupt and states.is_running(process):
            _kill_and_close(process.pid)
    began = time.monotonic()
    asked: set[int] = set()
    while True:
        running = set(_lab_processes(state, inodes))
        if not running:
            return
        waited = time.monotonic() - began
        if waited > _DEADLINE_S:
            names = []
            for pid in sorted(running):
                with suppress(OSError):
                    names.append(
                        f"{Path(f'/proc/{pid}/comm').read_text().strip()} ({pid})"
                    )
            stuck = ", ".join(names) or "a process"
            raise NotRemoved(
                f"ending the processes of lab {state.lab}: {stuck} remain"
            )
        for pid in running:
            if waited > _POLITE_S:
                _kill(pid, signal.SIGKILL)
            elif pid not in asked:
                _kill(pid, signal.SIGTERM)
                asked.add(pid)
        _wait_for_any(running, min(0.5, max(0.01, _POLITE_S - waited)))


def _kill_and_close(pid: int) -> None:
    """Kill a process that may hold hundreds of packet sockets, like a userspace Open vSwitch. The
    kernel takes 10 ms to close each, one by one: 4 s for 300 ports. This process takes them over
    first and closes them in parallel; if the kernel refuses that, it is only slower."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGSTOP)
        taken = _take_sockets(pid, process)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
        with ThreadPoolExecutor(_CLOSING_THREADS) as pool:
            list(pool.map(os.close, taken))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(process)


def _take_sockets(pid: int, process: int) -> list[int]:
    taken = list[int]()
    names = list[str]()
    with suppress(OSError):
        names = os.listdir(f"/proc/{pid}/fd")
    for name in names:
        # A descriptor may be closed at any moment.
        with suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                fd = _libc.syscall(
                    _PIDFD_GETFD,
                    process,
                    int(name),
                    0,
                )
                if fd >= 0:
                    taken.append(fd)
                elif ctypes.get_errno() in (
                    errno.EPERM,
                    errno.ENOSYS,
                    errno.EMFILE,
                ):
                    break
    return taken


def _lab_processes(state: states.LabState, inodes: set[int]) -> Iterable[int]:
    recorded = {p.pid for p in state.processes if states.is_running(p)}
    mark = f"{states.MARK}={state.run_dir}"
    # ``down`` does not end its caller.
    for pid in set(processes.process_ids()) - processes.ancestors():
        if (
            pid in recorded
            or namespaces.is_in(pid, inodes)
            or mark in processes.environment(pid)
        ):
            yield pid


def _kill(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait_for_any(pids: set[int], timeout_s: float) -> None:
    """Return when one of the processes has ended, or the time is over."""
    fds = []
    poll = select.poll()
    for pid in pids:
        with suppress(OSError):
            # A child stays a zombie until its status is read.
            os.waitpid(pid, os.WNOHANG)
        with suppress(OSError):
            fd = os.pidfd_open(pid)
            fds.append(fd)
            poll.register(fd, select.POLLIN)
    try:
        if len(fds) == len(pids):
            poll.poll(timeout_s * 1000)
    finally:
        for fd in fds:
            os.close(fd)


def _remove_containers(lab: str, engine: str) -> None:
    """Force-remove all containers labelled ``patchlight.lab=<lab>``, if an engine answers."""
    filters = quote(json.dumps({"label": [f"patchlight.lab={lab}"]}))
    try:
        answer = docker_engine.ask(
            "GET", f"/containers/json?all=1&filters={filters}", engine
        )
    except OSError:
        return
    if answer.status != 200:
        raise ContainerNotRemoved(
            f"listing the containers of lab {lab}: Docker said {answer.text}"
        )
    for number in [container["Id"] for container in answer.json()]:
        answer = docker_engine.ask(
            "DELETE", f"/containers/{number}?force=1&v=1", engine
        )
        # 404, 409: it is gone or being removed.
        if answer.status not in (204, 404, 409):
            what = f"removing the container {number[:12]}"
            raise ContainerNotRemoved(f"{what}: Docker said {answer.text}")


def _end_namespaces(lab: str, present: dict[str, int]) -> None:
    """Delete the namespaces and wait until the kernel has removed them, which it does later in
    order: a veth pair between the last one and one of this lab goes with it."""
    fabric = fabric_namespace(lab)
    # Never mounted: an empty file in /run/netns.
    real = [
        name
        for name in present
        if namespaces.is_one(namespaces.namespace_path(name))
    ]
    ordered = sorted(present, key=lambda name: (name in real, name == fabric))
    if not real:
        for name in ordered:
            namespaces.delete(name)
        return
    with namespaces.kept_namespace():
        namespaces.unshare_namespace()
        with Netlink() as netlink:
            with namespaces.opened(
                namespaces.namespace_path(ordered[-1])
            ) as last:
                here = links.LinkEnd("gone", 10)
                there = links.LinkEnd("pl-gone", namespace=last)
                netlink.run([links.add_veth(here, there)])
                for name in ordered:
                    namespaces.delete(name)
            deadline = time.monotonic() + _DEADLINE_S
            while time.monotonic() < deadline:
                try:
                    netlink.run([links.set_alias(10, "gone")])
                except KernelRefused as error:
                    if error.code == errno.ENODEV:
                        return
                    raise
                time.sleep(0.01)
    raise NotRemoved(
        f"removing the namespaces of lab {lab}: a process outside Patchlight still uses one of "
        "them",
        hint="The kernel removes it when that process or container ends.",
    )
