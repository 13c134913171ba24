"""The private Open vSwitch of emulated labs, alone in a namespace, for benchmarks and tests."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from patchlight.emulation.fabric.build import OpenVSwitch, new_bridge, set_tls
from patchlight.emulation.fabric.processes import LabService
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux.namespaces import entered
from tests.support.waiting import PATIENCE_S, wait_until


class PrivateOvs:
    """Open vSwitch in the new namespace ``namespace``; its files are in ``directory``."""

    def __init__(self, namespace: str, directory: Path) -> None:
        self.namespace = namespace
        self.directory = directory
        self._ovs = OpenVSwitch(directory, Path(self.netns))
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._namespaces: list[str] = []

    @property
    def netns(self) -> str:
        return f"/run/netns/{self.namespace}"

    @property
    def pid(self) -> int:
        return self._daemons[-1].pid

    def __enter__(self) -> Self:
        try:
            self.add_namespace(self.namespace)
            self._ovs.start(self._start_daemons)
            # Not one thread of each kind as in a lab: what is measured here runs on Open
            # vSwitch's own choice, as a host's would.
            self.vsctl("clear", "Open_vSwitch", ".", "other_config")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start_daemons(self, services: Sequence[LabService]) -> None:
        for service in services:
            with entered(self._ovs.namespace):
                environment = {**os.environ, **service.environment}
                self._daemons.append(
                    subprocess.Popen(service.argv, env=environment)
                )
            wait_until(service.ready, f"{service.name} answers")

    def stop(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for name in self._namespaces:
            with suppress(PatchlightError):
                _run("ip", "netns", "del", name)

    def add_namespace(self, name: str) -> None:
        _run("ip", "netns", "add", name)
        self._namespaces.append(name)
        _run("ip", "-n", name, "link", "set", "lo", "up")

    def vsctl(self, *arguments: str) -> str:
        return self._ovs.vsctl(arguments)

    def ofctl(self, command: str, bridge: str, *arguments: str) -> str:
        """Run ovs-ofctl on one of its bridges, past any controller."""
        socket = f"unix:{self.directory}/{bridge}.mgmt"
        return _run(
            "ovs-ofctl", "-O", "OpenFlow13", command, socket, *arguments
        )

    def flows(self, bridge: str) -> list[str]:
        """The bridge's flow entries as ovs-ofctl prints them, without counters, sorted."""
        lines = self.ofctl(
            "dump-flows", bridge, "--no-stats", "--no-names"
        ).splitlines()
        return sorted(line.strip() for line in lines if "actions=" in line)

    def add_bridge(
        self,
        name: str,
        datapath_id: int,
        controller: str,
        tls: Path | None = None,
    ) -> None:
        """A bridge that drops everything until a controller (``host:port``) says otherwise.

        ``tls``: over TLS, as are all bridges then that are to, with the certificate in the folder.
        """
        bridge = new_bridge(name, datapath_id, "netdev", learning=False)
        target = f"{'tcp' if tls is None else 'ssl'}:{controller}"
        certificate = [] if tls is None else [*set_tls(tls), "--"]
        self.vsctl(
            *certificate, *bridge[1:], "--", "set-controller", name, target
        )

    def add_host(self, bridge: str, port: int, address: str, mac: str) -> str:
        """A namespace with one interface that is plugged into a port; its name."""
        name = f"{self.namespace}-{bridge}-{port}"
        outer = f"{bridge}-{port}"
        self.add_namespace(name)
        peer = ["peer", "name", "nic0", "address", mac, "netns", name]
        _run(
            "ip",
            "-n",
            self.namespace,
            "link",
            "add",
            outer,
            "type",
            "veth",
            *peer,
        )
        _run("ip", "-n", name, "address", "add", address, "dev", "nic0")
        for namespace, interface in ((name, "nic0"), (self.namespace, outer)):
            _run("ip", "-n", namespace, "link", "set", interface, "up")
        self.vsctl(
            "add-port",
            bridge,
            outer,
            "--",
            "set",
            "Interface",
            outer,
            f"ofport_request={port}",
        )
        return name


def in_namespace(name: str, *command: str) -> str:
    return _run("ip", "netns", "exec", name, *command)


def _run(*command: str) -> str:
    if shutil.which(command[0]) is None:
        raise PatchlightError(
            f"{command[0]} is not installed",
            hint="apt install openvswitch-switch iproute2",
        )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        output = (done.stderr or done.stdout).strip()
        raise PatchlightError(
            f"`{' '.join(command)[:200]}` ended with {done.returncode}: {output}"
        )
    return done.stdout
