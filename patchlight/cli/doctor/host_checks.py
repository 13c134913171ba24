"""What this machine has of what Patchlight uses. Every probe leaves the machine as it was."""

from __future__ import annotations

import http.client
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

DEMO = "make demo"
_BY_HAND = "looking into a lab by hand"
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_PATIENCE_S = 20.0


@dataclass(frozen=True)
class Check:
    """One thing looked for. ``ok`` is ``None`` where it could not be tried.

    ``needed_for`` says what does not work without it; ``install`` is the command to run.
    """

    name: str
    ok: bool | None
    found: str
    needed_for: str
    install: str = ""

    @property
    def state(self) -> str:
        """``ok``, ``missing`` or ``untested``."""
        return {True: "ok", False: "missing", None: "untested"}[self.ok]


@dataclass(frozen=True)
class _Program:
    name: str
    package: str
    needed_for: str
    version: tuple[str, ...] = ()


_PROGRAMS = (
    _Program("ovs-vswitchd", "openvswitch-switch", DEMO, ("--version",)),
    _Program("ovsdb-server", "openvswitch-switch", DEMO, ("--version",)),
    _Program("ovs-vsctl", "openvswitch-switch", DEMO, ("--version",)),
    _Program("ovsdb-tool", "openvswitch-switch", DEMO, ("--version",)),
    _Program("ovs-ofctl", "openvswitch-switch", _BY_HAND, ("--version",)),
    _Program("ip", "iproute2", _BY_HAND, ("-V",)),
    _Program("tc", "iproute2", _BY_HAND, ("-V",)),
    _Program("ethtool", "ethtool", _BY_HAND, ("--version",)),
    _Program("nsenter", "util-linux", DEMO, ("--version",)),
    _Program("ping", "iputils-ping", _BY_HAND, ("-V",)),
    _Program("mmdebstrap", "mmdebstrap", "the image of Docker workers", ("--version",)),
    _Program("sshd", "openssh-server", "tests of deployment"),
    _Program("chromium", "chromium", "tests of the dashboard"),
)

# Import name, what pip calls it, and what does not work without it.
_PACKAGES = (
    ("click", "click", DEMO),
    ("docker", "docker", DEMO),
    ("eventlet", "eventlet", DEMO),
    ("fastapi", "fastapi", DEMO),
    ("httpx", "httpx", DEMO),
    ("matplotlib", "matplotlib", DEMO),
    ("numpy", "numpy", DEMO),
    ("os_ken", "os-ken", DEMO),
    ("paramiko", "paramiko", DEMO),
    ("prometheus_client", "prometheus-client", DEMO),
    ("pydantic", "pydantic", DEMO),
    ("pynvml", "nvidia-ml-py", DEMO),
    ("pyroute2", "pyroute2", DEMO),
    ("rich", "rich", DEMO),
    ("uvicorn", "uvicorn", DEMO),
    ("yaml", "PyYAML", DEMO),
    ("ryu", "ryu", "the Ryu engine (OS-Ken does the same)"),
)

_IMPORT = """
import importlib, importlib.metadata, json, sys
found = {}
for module, package in json.loads(sys.argv[1]):
    try:
        importlib.import_module(module)
        found[module] = [True, importlib.metadata.version(package)]
    except Exception as error:
        found[module] = [False, f"{type(error).__name__}: {error}"]
print()
print(json.dumps(found))
"""

# Each runs in a network namespace of its own that ends with it.
_KERNEL = (
    ("network namespaces", "true"),
    ("veth pairs", "ip link add name pla type veth peer name plb"),
    ("tbf (limits rates)", "tc qdisc add dev lo root tbf rate 1mbit burst 32kb latency 50ms"),
    (
        "clsact and mirred (the optical crossbar)",
        "tc qdisc add dev lo clsact && tc filter add dev lo ingress protocol all u32 "
        "match u32 0 0 action mirred egress redirect dev lo",
    ),
)


def examine() -> Iterator[Check]:
    """Every check, in the order to mend things in."""
    yield _root()
    yield _python()
    yield from (_program(program) for program in _PROGRAMS)
    yield _datapath()
    yield from (_kernel(name, command) for name, command in _KERNEL)
    yield docker_engine()
    yield from _packages()


def _root() -> Check:
    user = os.geteuid()
    found = "root" if user == 0 else f"user {user}"
    return Check("root", user == 0, found, DEMO, "" if user == 0 else "sudo patchlight doctor")


def _python() -> Check:
    good = sys.version_info >= (3, 11)
    found = f"{platform.python_version()} ({sys.executable})"
    return Check("Python 3.11 or newer", good, found, DEMO, _apt("python3 python3-venv"))


def _program(program: _Program) -> Check:
    where = shutil.which(program.name, path=_PATH)
    if where is None:
        missing = "not found"
        return Check(program.name, False, missing, program.needed_for, _apt(program.package))
    found = where
    if program.version:
        said = _run([where, *program.version])
        if said.returncode == 0 and (said.stdout or said.stderr).strip():
            found = (said.stdout or said.stderr).strip().splitlines()[0]
    return Check(program.name, True, found, program.needed_for)


def _datapath() -> Check:
    """Which Open vSwitch datapath a lab gets. Either will do, so this is never missing."""
    name, purpose = "Open vSwitch datapath", "speed of emulated switches"
    if Path("/sys/module/openvswitch").exists():
        return Check(name, True, "in the kernel (module openvswitch is loaded)", purpose)
    known = Path("/lib/modules", platform.release(), "modules.dep")
    try:
        loadable = "/openvswitch.ko" in known.read_text(encoding="utf-8", errors="replace")
    except OSError:
        loadable = False
    if loadable:
        return Check(name, True, "in the kernel (module openvswitch can be loaded)", purpose)
    return Check(name, True, "in user space (this kernel has no module openvswitch)", purpose)


def _kernel(name: str, command: str) -> Check:
    """Try what an emulated lab asks of the kernel, where nothing of the host can change."""
    what = f"kernel: {name}"
    if os.geteuid() != 0:
        return Check(what, None, "only root can try it", DEMO, "sudo patchlight doctor")
    for program, package in (("unshare", "util-linux"), ("ip", "iproute2"), ("tc", "iproute2")):
        if shutil.which(program, path=_PATH) is None:
            return Check(what, None, f"cannot be tried without {program}", DEMO, _apt(package))
    said = _run(["unshare", "--net", "sh", "-c", command])
    if said.returncode == 0:
        return Check(what, True, "works", DEMO)
    reason = (said.stderr or said.stdout).strip().replace("\n", "; ") or "refused"
    return Check(what, False, reason, DEMO, "use a kernel that has it, and run with CAP_NET_ADMIN")


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=5)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def docker_engine() -> Check:
    """Whether a Docker engine answers at ``$DOCKER_HOST`` or at the usual socket."""
    host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    name, purpose = "Docker engine", "Docker workers (process workers do without)"
    install = _start_docker()
    parts = urlsplit(host)
    try:
        if parts.scheme == "unix":
            connection: http.client.HTTPConnection = _UnixConnection(parts.path)
        elif parts.scheme in ("tcp", "http"):
            port = parts.port or 2375
            connection = http.client.HTTPConnection(parts.hostname or "localhost", port, timeout=5)
        else:
            return Check(name, None, f"do not know how to ask {host}", purpose)
        try:
            connection.request("GET", "/_ping")
            answer = connection.getresponse()
            body, version = answer.read().decode(errors="replace"), answer.getheader("Api-Version")
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        return Check(name, False, f"{host} does not answer: {error}", purpose, install)
    if answer.status == 200 and body.strip() == "OK":
        return Check(name, True, f"answers at {host} (API {version or 'unknown'})", purpose)
    return Check(name, False, f"{host} answers {answer.status}: {body[:80]}", purpose, install)


def _start_docker() -> str:
    start = "sudo systemctl start docker"
    if not Path("/run/systemd/system").exists():
        # A private engine that leaves the machine's iptables alone.
        start = "export DOCKER_HOST=$(sudo deploy/docker-engine.sh start)"
    return start if shutil.which("dockerd", path=_PATH) else f"{_apt('docker.io')} && {start}"


def _packages() -> Iterator[Check]:
    """Import every package in a process of its own: some of them patch what they find."""
    pairs = json.dumps([(module, package) for module, package, _ in _PACKAGES])
    said = _run([sys.executable, "-c", _IMPORT, pairs])
    last = said.stdout.strip().rpartition("\n")[2]
    found: dict[str, tuple[bool, str]] = json.loads(last) if said.returncode == 0 else {}
    for module, package, purpose in _PACKAGES:
        good, what = found.get(module, (False, said.stderr.strip()[-120:] or "cannot be imported"))
        install = f"{sys.executable} -m pip install {package}"
        if package == "ryu":
            install = f"PIP_CONSTRAINT=deploy/ryu-constraint.txt {install}==4.34"
        yield Check(f"Python package {package}", good, what, purpose, "" if good else install)


def _apt(packages: str) -> str:
    if shutil.which("apt-get", path=_PATH):
        return f"sudo apt-get install -y {packages}"
    return f"install what Debian calls {packages}"


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))
