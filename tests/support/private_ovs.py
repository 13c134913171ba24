"""A private Open vSwitch in a network namespace of its own, for benchmarks and tests.

Own database, own sockets, userspace datapath: the host's Open vSwitch is never spoken to.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from patchlight.testbed.errors import PatchlightError

_SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"


class PrivateOvs:
    """Open vSwitch in the new namespace ``namespace``; its files are in ``directory``."""

    def __init__(self, namespace: str, directory: Path) -> None:
        self.namespace = namespace
        self.directory = directory
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._namespaces: list[str] = []

    @property
    def netns(self) -> str:
        """The namespace as a path."""
        return f"/run/netns/{self.namespace}"

    @property
    def pid(self) -> int:
        """The process id of ovs-vswitchd."""
        return self._daemons[-1].pid

    def __enter__(self) -> PrivateOvs:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        self.add_namespace(self.namespace)
        database = self.directory / "conf.db"
        _run("ovsdb-tool", "create", str(database), _SCHEMA)
        self._daemon("ovsdb-server", str(database), f"--remote=punix:{self.directory}/db.sock")
        self.vsctl("--no-wait", "init")
        self._daemon("ovs-vswitchd", f"unix:{self.directory}/db.sock")

    def stop(self) -> None:
        """End the daemons and take the namespaces away."""
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for name in self._namespaces:
            with suppress(PatchlightError):
                _run("ip", "netns", "del", name)

    def add_namespace(self, name: str) -> None:
        """Another namespace, gone when this is stopped."""
        _run("ip", "netns", "add", name)
        self._namespaces.append(name)
        _run("ip", "-n", name, "link", "set", "lo", "up")

    def _daemon(self, name: str, *arguments: str) -> None:
        control = self.directory / f"{name}.ctl"
        command = [
            "ip", "netns", "exec", self.namespace, name, "-vconsole:off", "-vsyslog:off",
            *arguments, f"--unixctl={control}", f"--log-file={self.directory}/{name}.log",
        ]  # fmt: skip
        environment = {**os.environ, "OVS_RUNDIR": str(self.directory)}
        daemon = subprocess.Popen(command, env=environment)
        self._daemons.append(daemon)
        until(lambda: control.exists() or daemon.poll() is not None, f"{name} answers")
        if daemon.poll() is not None:
            raise PatchlightError(f"{name} ended at once with status {daemon.returncode}")

    def vsctl(self, *arguments: str) -> str:
        """Run ovs-vsctl on this Open vSwitch's database."""
        database = f"--db=unix:{self.directory}/db.sock"
        return _run("ovs-vsctl", database, "--timeout=30", *arguments)

    def ofctl(self, command: str, bridge: str, *arguments: str) -> str:
        """Run ovs-ofctl on one of its bridges, past any controller."""
        where = f"unix:{self.directory}/{bridge}.mgmt"
        return _run("ovs-ofctl", "-O", "OpenFlow13", command, where, *arguments)

    def flows(self, bridge: str) -> list[str]:
        """The bridge's flow entries as ovs-ofctl prints them, without counters, sorted."""
        said = self.ofctl("dump-flows", bridge, "--no-stats", "--no-names")
        return sorted(line.strip() for line in said.splitlines() if "actions=" in line)

    def add_bridge(self, name: str, datapath_id: int, controller: str) -> None:
        """A bridge that drops everything until a controller (``host:port``) says otherwise."""
        self.vsctl(
            "add-br", name, "--", "set", "Bridge", name, "datapath_type=netdev",
            "fail_mode=secure", "protocols=OpenFlow13",
            f"other-config:datapath-id={datapath_id:016x}", "other-config:disable-in-band=true",
            "--", "set-controller", name, f"tcp:{controller}",
        )  # fmt: skip

    def add_host(self, bridge: str, port: int, address: str, mac: str) -> str:
        """A namespace with one interface that is plugged into a port; its name."""
        name, outer = f"{self.namespace}-{bridge}-{port}", f"{bridge}-{port}"
        self.add_namespace(name)
        _run("ip", "-n", self.namespace, "link", "add", outer, "type", "veth",
             "peer", "name", "nic0", "address", mac, "netns", name)  # fmt: skip
        _run("ip", "-n", name, "address", "add", address, "dev", "nic0")
        for namespace, interface in ((name, "nic0"), (self.namespace, outer)):
            _run("ip", "-n", namespace, "link", "set", interface, "up")
        self.vsctl(
            "add-port", bridge, outer, "--", "set", "Interface", outer, f"ofport_request={port}"
        )
        return name


def until(true: Callable[[], object], what: str, within_s: float = 15.0) -> None:
    """Poll until it is so; ``PatchlightError`` after ``within_s``."""
    deadline = time.monotonic() + within_s
    while not true():
        if time.monotonic() > deadline:
            raise PatchlightError(f"waited {within_s:g} s in vain until {what}")
        time.sleep(0.02)


def in_namespace(name: str, *command: str) -> str:
    """What the command prints when it runs in that namespace."""
    return _run("ip", "netns", "exec", name, *command)


def _run(*command: str) -> str:
    if shutil.which(command[0]) is None:
        raise PatchlightError(
            f"{command[0]} is not installed", hint="apt install openvswitch-switch iproute2"
        )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise PatchlightError(f"`{' '.join(command)[:200]}` ended with {done.returncode}: {said}")
    return done.stdout
