"""Deployments to a virtual machine with systemd, while power, connections, disks and agents fail.

    python -m benchmarks.deployfaults [--faults 30] [--seed 1]

Each deployment is cut off by a fault; ``patchlight`` is run as a user runs it. It needs root and
QEMU. Thirty faults take 24 minutes alone on two cores.
"""

import argparse
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from paramiko import SSHClient

from patchlight.deploy.bundle import FromHere, bundle_file, here, write_bundle
from patchlight.deploy.ssh import logged_in
from patchlight.emulation.fabric import lab_state as states
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Server
from patchlight.testbed.labfile.reader import read_lab
from patchlight.testbed.labfile.writer import write_lab
from tests.support.cut_line import line_that_breaks
from tests.support.emulated_labs import left_of, no_virtual_machines

ONE = """
name: one
network: 192.168.10.0/24
servers:
  - name: server1
    gpus: [{name: gpu0, model: Tesla M40}]
    nics: [{name: nic0, address: 192.168.10.11, rate: 40Gbps, gpu: gpu0}]
circuit_switches: [{name: ocs1, driver: polatis-tl1, address: "10.0.0.1:3082", ports: 4}]
fibres: [server1.nic0 - ocs1.1]
"""
# An emulated processor on a busy machine takes minutes for what takes seconds.
PATIENCE_S = 1200
_FULL = "/var/fill"


class Machine:
    """A lab of one virtual machine, and what a user does with it from here."""

    def __init__(self, name: str, folder: Path, seed: int) -> None:
        self.name = name
        self._folder = folder
        self.rng = random.Random(seed)
        xdg = ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
        self._environment = {
            **os.environ,
            **dict.fromkeys(xdg, str(folder / "home")),
        }
        (folder / "one.yaml").write_text(ONE)
        self.took_s = 0.0

    def up(self) -> None:
        """Bring the lab up, or its dead machine."""
        path = str(self._folder / "one.yaml")
        options = (
            "--name",
            self.name,
            "--scale",
            "1000",
            "--server-kind",
            "vm",
        )
        self.run("emulate", "up", path, *options)

    def down(self) -> None:
        """Take the lab down."""
        self.run("emulate", "down", self.name)

    @property
    def server(self) -> Server:
        """The machine, with its login."""
        return read_lab(states.run_dir(self.name) / "lab.yaml").servers[0]

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """Start a command."""
        command = [sys.executable, "-m", "patchlight", *words]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, env=self._environment
        )

    def run(self, *words: str, code: int | None = 0) -> str:
        """What a command prints that ends with that code (``None``: any)."""
        with self.start(*words) as process:
            output, errors = process.communicate(timeout=PATIENCE_S)
        assert code is None or process.returncode == code, (
            words,
            output,
            errors,
        )
        return output

    def on(self, command: str, *, fails: bool = False) -> str:
        """What a command of root's on the machine writes."""
        with ExitStack() as stack:
            client: SSHClient = self.until(
                lambda: stack.enter_context(logged_in(self.server)),
                "its sshd to answer",
            )
            stdin, output, _ = client.exec_command(
                "exec 2>&1; sudo sh -e", timeout=PATIENCE_S
            )
            stdin.write(command)
            stdin.channel.shutdown_write()
            text = output.read().decode()
            assert fails or output.channel.recv_exit_status() == 0, text
        return text

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Poll until the condition holds; errors on the way count as no."""
        ends = time.monotonic() + PATIENCE_S
        last = None
        while time.monotonic() < ends:
            try:
                if last := condition():
                    return last
            except (
                PatchlightError,
                AssertionError,
                OSError,
                EOFError,
                ValueError,
            ) as error:
                last = error
            time.sleep(0.5)
        raise AssertionError(
            f"waited {PATIENCE_S} s for {what}; last: {last!r}"
        )

    def bundles(self) -> list[Path]:
        """Three releases for it: the others differ from the first in the comment of a wheel, ours
        or that of a package in the layer."""
        part = FromHere(print).part(here(), "agent")
        paths = []
        for package in ("", "patchlight", "click"):
            files = dict(part.files)
            if package:
                name = next(
                    name for name in files if name.startswith(f"{package}-")
                )
                changed = self._folder / name
                changed.write_bytes(files[name].path.read_bytes())
                with zipfile.ZipFile(changed, "a") as wheel:
                    wheel.comment = b"another release"
                files[name] = bundle_file(changed)
            other = replace(part, files=files)
            names = {
                name: name.replace(part.layer, other.layer) for name in files
            }
            files = {names[name]: file for name, file in files.items()}
            paths.append(self._folder / f"{package or 'first'}.tar")
            write_bundle(
                {(here(), "agent"): replace(part, files=files)}, paths[-1]
            )
        return paths

    def push(self, bundle: Path, lab: str = "") -> "subprocess.Popen[str]":
        """Start a push of a bundle."""
        options = (
            "--bundle",
            str(bundle),
            "--worker-kind",
            "process",
            "--json",
        )
        return self.start("deploy", "push", lab or self.name, *options)

    def pushed(self, bundle: Path) -> str:
        """Push a bundle; the release that runs then."""
        began = time.monotonic()
        with self.push(bundle) as process:
            output, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, (output, errors)
        self.took_s = time.monotonic() - began
        return str(json.loads(output)["servers"][0]["release"])

    def status(self) -> dict[str, Any]:
        """What ``deploy status`` says of the machine."""
        output = self.run("deploy", "status", self.name, "--json", code=None)
        return dict(json.loads(output)["servers"][0])

    def settled(self) -> dict[str, Any]:
        """The status, once its agent runs and answers."""

        def well() -> dict[str, Any] | None:
            status = self.status()
            return status if status["ok"] and status["version"] else None

        found: dict[str, Any] = self.until(well, "the agent to answer")
        return found

    def cut_power(self) -> None:
        """Kill its QEMU."""
        state = states.read_state(self.name)
        assert state is not None
        (process,) = [p for p in state.processes if p.name == "server-server1"]
        os.kill(process.pid, signal.SIGKILL)

    def boot_id(self) -> str:
        return self.on("cat /proc/sys/kernel/random/boot_id")

    def reboots(self) -> None:
        """Reboot it from the inside, and wait for its sshd."""
        before = self.boot_id()
        self.on("systemctl reboot", fails=True)
        self.until(lambda: self.boot_id() != before, "it to boot")


def _ended(process: "subprocess.Popen[str]") -> str:
    """What a push said: where it failed, also what to do."""
    with process:
        output, errors = process.communicate(timeout=PATIENCE_S)
    servers = json.loads(output)["servers"] if output else []
    assert all(server["ok"] or server["remedy"] for server in servers), output
    return output + errors


def _during(
    machine: Machine, bundle: Path, fault: Callable[[], object]
) -> str:
    """A push that a fault meets at a random moment; what it said."""
    process = machine.push(bundle)
    # To log in for the fault takes a while, too.
    time.sleep(machine.rng.uniform(0, 0.5 * machine.took_s))
    fault()
    return _ended(process)


def cut_line(machine: Machine, bundle: Path) -> str:
    """The connection breaks off after some bytes; the files of most releases are there."""
    return _cut(machine, bundle, machine.rng.randrange(5_000, 60_000))


def cut_layer(machine: Machine, bundle: Path) -> str:
    """The connection breaks off while all that was ever sent is sent again, the layer, too."""
    machine.on("rm /opt/patchlight/*/files/*")
    machine.on("find /opt/patchlight/*/layers -name layer.json -delete")
    return _cut(machine, bundle, machine.rng.randrange(5_000_000, 25_000_000))


def damaged_layer(machine: Machine, bundle: Path) -> str:
    """A file of the layer is cut short, or lost."""
    do = machine.rng.choice(("truncate --size 100", "rm"))
    machine.on(
        f"{do} $(find /opt/patchlight/*/layers -type f -size +1 | sort | "
        f"sed -n {machine.rng.randrange(1, 1000)}p)"
    )
    return _ended(machine.push(bundle))


def _cut(machine: Machine, bundle: Path, limit: int) -> str:
    server = machine.server
    assert server.ssh.address is not None
    with line_that_breaks(server.ssh.address, server.ssh.port, limit) as port:
        there = replace(
            server, ssh=replace(server.ssh, address="127.0.0.1", port=port)
        )
        lab = read_lab(states.run_dir(machine.name) / "lab.yaml").with_changes(
            servers=(there,)
        )
        path = machine._folder / "cut.yaml"
        path.write_text(write_lab(lab))
        return _ended(machine.push(bundle, str(path)))


def killed_push(machine: Machine, bundle: Path) -> str:
    """The command is killed here."""
    process = machine.push(bundle)
    time.sleep(machine.rng.uniform(0, 0.5 * machine.took_s))
    process.kill()
    return _ended(process)


def killed_helper(machine: Machine, bundle: Path) -> str:
    """What works for the push on the server is killed."""
    kill = "pkill --signal KILL --full '[r]emote_helper|[p]atchlight.deploy' || true"
    return _during(machine, bundle, lambda: machine.on(kill))


def power_cut(machine: Machine, bundle: Path) -> str:
    """The power fails, and comes back."""
    said = _during(machine, bundle, machine.cut_power)
    machine.up()
    return said


def reboot(machine: Machine, bundle: Path) -> str:
    """Somebody reboots the server."""
    return _during(machine, bundle, machine.reboots)


def full_disk(machine: Machine, bundle: Path) -> str:
    """Its disk is nearly full."""
    leave = machine.rng.randrange(100_000, 5_000_000)
    # With the blocks that are kept for root, and what the file system needs for itself.
    machine.on(
        "free=$(($(stat --file-system --format='%f * %S' /var)))\n"
        f"fallocate --length $((free - 100000000)) {_FULL}\n"
        f"cat /dev/zero >{_FULL}2 2>/dev/null || truncate --size -{leave} {_FULL}2; sync"
    )
    try:
        return _ended(machine.push(bundle))
    finally:
        machine.on(f"rm {_FULL} {_FULL}2")


def killed_agent(machine: Machine, bundle: Path) -> str:
    """Its agent is killed again and again, more often than systemd lets programs start usually."""
    shown = f"systemctl show --property MainPID --value patchlight-agent@{machine.name}"
    machine.on(
        f"for turn in 1 2 3 4 5 6 7 8; do until pid=$({shown}) && [ $pid != 0 ]; do sleep 0.2; "
        "done; kill -9 $pid; done"
    )
    return "killed eight times"


def job_meets_power_cut(machine: Machine, bundle: Path) -> str:
    """A job is there when the power fails."""

    def fault() -> None:
        machine.cut_power()
        machine.up()

    return _job_meets(machine, fault)


def job_meets_reboot(machine: Machine, bundle: Path) -> str:
    """A job is there when somebody reboots the server."""
    return _job_meets(machine, machine.reboots)


def _job_meets(machine: Machine, fault: Callable[[], object]) -> str:
    name = f"job{machine.rng.randrange(10**6)}"
    options = (
        "--lab",
        machine.name,
        "--workers",
        "1",
        "--iterations",
        "100000",
    )
    machine.settled()
    machine.run("job", "submit", name, *options)

    def shown() -> dict[str, Any]:
        return dict(
            json.loads(
                machine.run(
                    "job", "show", name, "--lab", machine.name, "--json"
                )
            )
        )

    machine.until(lambda: shown()["state"] == "running", "the job to run")
    fault()
    machine.until(
        lambda: shown()["state"] in ("failed", "done", "stopped"),
        "the job to end",
    )
    job = shown()
    assert job["state"] == "failed", job
    assert job["message"], job
    return str(job["message"])


FAULTS = (
    damaged_layer,
    cut_layer,
    power_cut,
    killed_helper,
    full_disk,
    killed_agent,
    job_meets_power_cut,
    cut_line,
    reboot,
    killed_push,
    job_meets_reboot,
)

# Files with modes, owners and targets, units. Without what any machine writes as it runs.
EVERYTHING = r"""
find / -xdev \( -path /proc -o -path /sys -o -path /tmp -o -path /run -o -path /var/log \
    -o -path /var/lib/systemd -o -path /var/tmp -o -path /var/lib/sudo \) -prune \
    -o -printf '%p %y %m %u %l\n' | sort
find /etc /usr/local /home /root -xdev -type f -exec sha256sum {} + | sort
systemctl list-unit-files --no-legend --no-pager | sort
systemctl list-units --all --plain --no-legend --no-pager 'patchlight*'
ls /run /var/log | grep patchlight || true
dpkg-query --show
"""


def campaign(machine: Machine, count: int, say: Callable[[str], None]) -> None:
    """So many faults, one after the other: each time the old or another release runs afterwards,
    and its agent answers. At the end nothing is left on the server."""
    # The image has no layer.
    machine.on("umount /usr/lib/patchlight; cp /dev/null /etc/fstab")
    before = machine.on(EVERYTHING)
    releases = {}
    for bundle in machine.bundles():
        releases[machine.pushed(bundle)] = bundle
        say(f"push of {bundle.name}: {machine.took_s:.0f} s")
    assert len(releases) == 3
    for number in range(count):
        fault = FAULTS[number % len(FAULTS)]
        old = machine.settled()["release"]
        bundle = machine.rng.choice(
            [path for name, path in releases.items() if name != old]
        )
        began = time.monotonic()
        said = fault(machine, bundle).strip().replace("\n", " ")
        now = machine.settled()["release"]
        assert now in releases, (fault, said, now)
        took_s = time.monotonic() - began
        which = "old" if now == old else "new"
        say(
            f"{number} {fault.__name__}: {which} release after {took_s:.0f} s; {said[:300]}"
        )
    machine.pushed(bundle)
    agent = shlex.quote(f"patchlight-agent@{machine.name}")
    assert machine.on(f"systemctl is-active {agent}").strip() == "active"
    machine.run("deploy", "remove", machine.name)
    assert machine.on(EVERYTHING).splitlines() == before.splitlines()


def main() -> None:
    """Run the campaign in a lab of its own; ``AssertionError`` if the lab leaves something here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if reason := no_virtual_machines():
        raise SystemExit(reason)
    name = f"s{os.getpid()}"
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(name, Path(folder), options.seed)
        try:
            machine.up()
            campaign(
                machine, options.faults, lambda line: print(line, flush=True)
            )
        finally:
            machine.down()
    assert left_of(name) == []


if __name__ == "__main__":
    main()
