"""What can go wrong in an emulated lab: each fault lasts for as long as its block is entered."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from patchlight import EmulatedLab
from patchlight.emulation.fabric.plan import namespace_prefix
from patchlight.testbed.linux.namespaces import names_with_prefix, processes_in
from patchlight.testbed.linux.processes import command_line, process_ids
from tests.support.lab_processes import (
    LabProcess,
    agent_of,
    controller_of,
    until_agent_answers,
    until_controller_answers,
)
from tests.support.waiting import ask

SERVER_WITH_SMALL_DISK = "server4"


@contextmanager
def small_disks(lab: EmulatedLab) -> Iterator[None]:
    """The controller and the agent of one server keep their state on a small disk of their own."""
    controller = controller_of(lab)
    agent = agent_of(lab, SERVER_WITH_SMALL_DISK)
    folders = [
        lab.run_dir / "controller",
        lab.run_dir / "agents" / SERVER_WITH_SMALL_DISK,
    ]
    with contextlib.ExitStack() as stack:
        for process, folder, size in zip(
            (controller, agent), folders, ("32m", "1m"), strict=True
        ):
            process.end(signal.SIGTERM)
            _mount(folder, size)
            stack.callback(_unmount, folder)
            process.start()
        until_agent_answers(lab, SERVER_WITH_SMALL_DISK)
        until_controller_answers(lab)
        yield


def _mount(folder: Path, size: str) -> None:
    before = folder.with_name(f"{folder.name}-before")
    shutil.copytree(
        folder,
        before,
        ignore=lambda _, names: {n for n in names if "sock" in n},
    )
    mode = oct(folder.stat().st_mode & 0o777)[2:]
    options = f"size={size},mode={mode}"
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", folder], check=True
    )
    shutil.copytree(before, folder, dirs_exist_ok=True)
    shutil.rmtree(before)


def _unmount(folder: Path) -> None:
    # Whoever has files open there keeps them until the lab goes.
    subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def killed(
    process: LabProcess, number: signal.Signals = signal.SIGKILL
) -> Iterator[None]:
    """A process is not there; it is started again at the end."""
    process.end(number)
    try:
        yield
    finally:
        process.start()


@contextmanager
def frozen(process: LabProcess) -> Iterator[None]:
    """A process does nothing."""
    process.tell(signal.SIGSTOP)
    try:
        yield
    finally:
        process.tell(signal.SIGCONT)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """A disk has no room left."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 12))
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def gpu_gone(lab: EmulatedLab, gpu: str) -> Iterator[None]:
    """A GPU has fallen off the bus: nobody gets through to it any more."""
    path = lab.run_dir / "gpus" / f"{lab.lab.host(gpu).name}.sock"
    path.rename(path.with_suffix(".off"))
    try:
        yield
    finally:
        path.with_suffix(".off").rename(path)


@contextmanager
def no_carrier(lab: EmulatedLab, host: str) -> Iterator[None]:
    """The fibre of a NIC is cut."""
    fibre = next(
        f for f in lab.lab.fibres if lab.lab.host(host).endpoint in (f.a, f.b)
    )
    lab.wires.set_up(fibre, up=False)
    try:
        yield
    finally:
        lab.wires.set_up(fibre, up=True)


def ocs_fault(lab: EmulatedLab, **faults: Any) -> None:
    """Tell the emulated switch what is to go wrong."""
    answer = ask(lab.run_dir / "optical" / "ocs1.control", faults)
    assert answer["ok"], answer


def light_of(lab: EmulatedLab, host: str) -> str:
    """The circuit that a host is lit by, as ``inp>out``; empty if it is dark."""
    port = lab.lab.fibre_ends[lab.lab.host(host).endpoint][0].port
    circuits = json.loads((lab.run_dir / "optical" / "ocs1.json").read_text())[
        "circuits"
    ]
    ways = [way for circuit in circuits for way in circuit["directions"]]
    return next(
        (f"{inp}>{out}" for inp, out in ways if str(inp) == str(port)), ""
    )


def lose_light(lab: EmulatedLab, host: str) -> None:
    """The circuit of a host is gone without a word."""
    if circuit := light_of(lab, host):
        ocs_fault(lab, lose=circuit)


def kill_a_worker(
    lab: EmulatedLab, rng: random.Random, worker: str = ""
) -> None:
    """Kill some process of that worker, which must have one, or of any; its keeper maybe."""
    spaces = names_with_prefix(namespace_prefix(lab.lab.name))
    wanted = [space for space in spaces if f".w-{worker}" in space]
    found = [pid for space in wanted for pid in processes_in(space)]
    assert found or not worker, f"worker {worker} has no process"
    with contextlib.suppress(ProcessLookupError):
        if found:
            os.kill(rng.choice(sorted(found)), signal.SIGKILL)


def kill_the_speaker(lab: EmulatedLab) -> None:
    """Kill the OpenFlow speaker, if there is one just now."""
    for pid in process_ids():
        if f"{lab.run_dir}/controller/speaker.sock" in command_line(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


Block = AbstractContextManager[None]
_once = contextlib.nullcontext


def random_faults(
    lab: EmulatedLab, rng: random.Random
) -> Mapping[str, tuple[str, Callable[[], Block]]]:
    """Faults by name, each with what it befalls, of which two at a time would be too many."""
    server = rng.choice(lab.lab.servers).name
    host = rng.choice(lab.lab.hosts).name
    controller = controller_of(lab)
    agent = agent_of(lab, server)
    ocs = LabProcess(lab, "--ocs=ocs1")

    def happened(what: Callable[[], None]) -> Block:
        what()
        return _once()

    def asked(**faults: Any) -> Callable[[], Block]:
        return lambda: happened(lambda: ocs_fault(lab, **faults))

    return {
        "controller killed": ("controller", lambda: killed(controller)),
        "controller stopped": (
            "controller",
            lambda: killed(controller, signal.SIGTERM),
        ),
        "controller's disk full": (
            "controller",
            lambda: full(lab.run_dir / "controller"),
        ),
        "agent killed": (f"agent {server}", lambda: killed(agent)),
        "agent silent": (f"agent {server}", lambda: frozen(agent)),
        "server's disk full": (
            f"agent {SERVER_WITH_SMALL_DISK}",
            lambda: full(lab.run_dir / "agents" / SERVER_WITH_SMALL_DISK),
        ),
        "worker killed": (
            "worker",
            lambda: happened(lambda: kill_a_worker(lab, rng)),
        ),
        "speaker killed": (
            "speaker",
            lambda: happened(lambda: kill_the_speaker(lab)),
        ),
        "GPU gone": (f"host {host}", lambda: gpu_gone(lab, host)),
        "no carrier": (f"host {host}", lambda: no_carrier(lab, host)),
        "light lost": ("ocs", lambda: happened(lambda: lose_light(lab, host))),
        "OCS refuses": ("ocs", asked(refuse_next="Failed: not today")),
        "OCS hangs up": ("ocs", asked(cut=rng.choice(["before", "after"]))),
        "OCS away": ("ocs", lambda: frozen(ocs)),
    }
