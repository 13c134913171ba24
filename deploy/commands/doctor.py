"""``patchlight doctor``: what this machine has and lacks; every probe leaves it as it was."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from patchlight.console import rendering as out
from patchlight.console.shared import lab_option
from patchlight.testbed.errors import BadInput, PatchlightError, reason
from patchlight.testbed.linux import deploy_file, quoted_deploy_file

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from patchlight.testbed.lab.model import Server

# A wheel has no Makefile.
_CHECKOUT = deploy_file("").parent.joinpath("Makefile").is_file()
DEMO = "make demo" if _CHECKOUT else "patchlight experiment ofc2022"
_MEANINGS: dict[str, out.Meaning] = {
    "missing": "bad",
    "untested": "caution",
    "ok": "good",
}
_SERVERS = "a server of a lab"
_BY_HAND = "inspecting a lab by hand"
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_PATIENCE_S = 20.0
# Every package at once, on a busy machine that has read none of them from its disk yet.
_IMPORT_PATIENCE_S = 180.0


@dataclass(frozen=True)
class Check:
    """One thing looked for (``ok`` is ``None``: not tried), what needs it, how to install it."""

    name: str
    ok: bool | None
    found: str
    needed_for: str
    install: str = ""

    @property
    def state(self) -> str:
        """``ok``, ``missing`` or ``untested``."""
        return {True: "ok", False: "missing", None: "untested"}[self.ok]


# Name, Debian's package, what does not work without it, the option that prints its version.
_PROGRAMS = (
    ("ovs-vswitchd", "openvswitch-switch", DEMO, "--version"),
    ("ovsdb-server", "openvswitch-switch", DEMO, "--version"),
    ("ovs-vsctl", "openvswitch-switch", DEMO, "--version"),
    ("ovsdb-tool", "openvswitch-switch", DEMO, "--version"),
    ("ovs-ofctl", "openvswitch-switch", _BY_HAND, "--version"),
    ("bwrap", "bubblewrap", "process workers", "--version"),
    ("ip", "iproute2", _BY_HAND, "-V"),
    ("tc", "iproute2", _BY_HAND, "-V"),
    ("ethtool", "ethtool", _BY_HAND, "--version"),
    ("ping", "iputils-ping", _BY_HAND, "-V"),
    (
        "mmdebstrap",
        "mmdebstrap",
        "Docker workers, rehearsal servers",
        "--version",
    ),
)

# Packages that are not imported by their name in lower case with underscores.
_IMPORT_NAMES = {"nvidia-ml-py": "pynvml", "PyYAML": "yaml"}
# What does not work without a package; without any other the demo does not.
_PURPOSES = {
    "onnxruntime": "learned policies",
    "pyarrow": "simulation results as Parquet files",
    "ryu": "the Ryu engine (alternative: OS-Ken)",
}

_IMPORT = """
import atexit, gc, importlib, importlib.metadata, json, sys
gc.disable()  # what imports make is no garbage, now or at the end
atexit.register(gc.freeze)
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
    (
        "tbf (limits rates)",
        "tc qdisc add dev lo root tbf rate 1mbit burst 32kb latency 50ms",
    ),
    (
        "clsact and mirred (the optical crossbar)",
        "tc qdisc add dev lo clsact && tc filter add dev lo ingress protocol all u32 "
        "match u32 0 0 action mirred egress redirect dev lo",
    ),
)


def _servers(*asked: Any) -> list[CompletionItem]:
    from patchlight.console.connection import complete_server

    return complete_server(*asked)


@click.command()
@lab_option("Also compare this machine with a server of this lab.", "lab")
@click.pass_context
@click.option(
    "--server",
    metavar="NAME",
    shell_complete=_servers,
    help="Which server of the lab this is [default: the host name].",
)
@out.listing_options
def doctor(
    context: click.Context,
    lab: str | None,
    server: str | None,
    as_json: bool,
) -> None:
    """Check this machine, and show how to install missing parts. Problems come first. Exit code 1
    if the OFC 2022 experiment (`make demo` in a checkout) lacks something, or if the machine
    differs from the lab file. Nothing on the machine changes. `deploy push --dry-run` checks the
    servers of a lab over SSH.
    """
    of_variable = context.get_parameter_source("lab") is (
        ParameterSource.ENVIRONMENT
    )
    meant = _meant(lab, server, must=not of_variable)
    if meant is None:
        lab = None
    needed_for = _SERVERS if meant is None else f"{meant.name} of lab {lab}"
    checks = list(examine(meant, needed_for))
    lacking = [
        check
        for check in checks
        if check.ok is False and check.needed_for == DEMO
    ]
    unlike = [
        c
        for c in checks
        if c.ok is False and meant and c.needed_for == needed_for
    ]
    if as_json:
        keys = ("name", "state", "found", "needed_for", "install")
        facts = [
            {key: getattr(check, key) or None for key in keys}
            for check in checks
        ]
        as_claimed = (
            {}
            if meant is None
            else {"server": meant.name, "as_the_lab_says": not unlike}
        )
        out.print_json(
            {"ready_for_demo": not lacking, **as_claimed, "checks": facts}
        )
    else:
        _print(checks, lacking)
        if unlike:
            names = ", ".join(check.name for check in unlike)
            out.say(f"This machine differs from {needed_for}: {names}.")
        elif meant is not None:
            out.say(f"This machine matches {meant.name} in the lab file.")
    if lacking or unlike:
        sys.exit(1)


def _meant(lab: str | None, name: str | None, *, must: bool) -> Server | None:
    """The server of the lab file that this machine is; unless it ``must`` be one, ``None``."""
    if lab is None:
        if name is not None:
            raise BadInput("--server needs --lab")
        return None
    from patchlight.console.connection import running_lab

    servers = {server.name: server for server in running_lab(lab).servers}
    wanted = name or platform.node().partition(".")[0]
    if wanted in servers:
        return servers[wanted]
    if name is None and not must:
        return None
    expected = (
        f"expected one of {', '.join(servers)}"
        if servers
        else "the lab has none"
    )
    raise BadInput(
        f"lab {lab} has no server {wanted!r}: {expected}",
        hint=None if name else "Name this machine's server: --server NAME",
    )


def _print(checks: list[Check], lacking: list[Check]) -> None:
    order = list(_MEANINGS)
    by_state = sorted(checks, key=lambda check: order.index(check.state))
    table = out.Table(
        out.Column("", whole=True),
        "what",
        "found",
        "needed for",
    )
    for before, check in zip([None, *by_state], by_state, strict=False):
        if before is not None and check.state == "ok" != before.state:
            table.end_section()
        state = out.Coloured(check.state, _MEANINGS[check.state])
        table.add_row(
            state,
            check.name,
            check.found,
            check.needed_for,
        )
    table.print()
    wanted = [
        check for check in checks if check.ok is not True and check.install
    ]
    if wanted:
        out.say("\nTo install or test what is missing:")
        for command in dict.fromkeys(check.install for check in wanted):
            names = ", ".join(
                check.name for check in wanted if check.install == command
            )
            out.say(f"  {command}    # {names}")
    if lacking:
        out.say(
            f"\n`{DEMO}` cannot run yet: {', '.join(check.name for check in lacking)}."
        )
    else:
        out.say(f"\n`{DEMO}` can run here.")


def examine(
    server: Server | None = None, needed_for: str = _SERVERS
) -> Iterator[Check]:
    """Every check, in the order to mend things in; with a server, also what a lab claims of it."""
    yield _root()
    yield _python()
    yield from (_program(*program) for program in _PROGRAMS)
    yield _datapath()
    yield from (_kernel(name, command) for name, command in _KERNEL)
    yield from machine(server, needed_for)
    yield from _packages()


def _root() -> Check:
    user = os.geteuid()
    found = "root" if user == 0 else f"user {user}"
    return Check(
        "root",
        user == 0,
        found,
        DEMO,
        "" if user == 0 else "sudo patchlight doctor",
    )


def _python() -> Check:
    good = sys.version_info >= (3, 11)
    found = f"{platform.python_version()} ({sys.executable})"
    return Check(
        "Python 3.11 or newer",
        good,
        found,
        DEMO,
        _apt("python3 python3-venv"),
    )


def _program(
    name: str,
    package: str,
    needed_for: str,
    version_option: str,
) -> Check:
    path = shutil.which(name, path=_PATH)
    if path is None:
        return Check(
            name,
            False,
            "not found",
            needed_for,
            _apt(package),
        )
    process = _run([path, version_option])
    lines = (process.stdout or process.stderr).strip().splitlines()
    return Check(
        name,
        True,
        lines[0] if lines and not process.returncode else path,
        needed_for,
    )


def _datapath() -> Check:
    """Which Open vSwitch datapath a lab gets. Either will do, so this is never missing."""
    name = "Open vSwitch datapath"
    purpose = "speed of emulated switches"
    found = "in user space (this kernel has no module openvswitch)"
    if Path("/sys/module/openvswitch").exists():
        found = "in the kernel (module openvswitch is loaded)"
    else:
        modules = Path("/lib/modules", platform.release(), "modules.dep")
        with suppress(OSError):
            if "/openvswitch.ko" in modules.read_text(
                encoding="utf-8",
                errors="replace",
            ):
                found = "in the kernel (module openvswitch can be loaded)"
    return Check(
        name,
        True,
        found,
        purpose,
    )


def _kernel(name: str, command: str) -> Check:
    """Try what an emulated lab asks of the kernel, where nothing of the host can change."""
    what = f"kernel: {name}"
    if os.geteuid() != 0:
        return Check(
            what,
            None,
            "only root can test it",
            DEMO,
            "sudo patchlight doctor",
        )
    for program, package in (
        ("unshare", "util-linux"),
        ("ip", "iproute2"),
        ("tc", "iproute2"),
    ):
        if shutil.which(program, path=_PATH) is None:
            return Check(
                what,
                None,
                f"cannot be tested without {program}",
                DEMO,
                _apt(package),
            )
    process = _run(
        [
            "unshare",
            "--net",
            "sh",
            "-c",
            command,
        ]
    )
    if process.returncode == 0:
        return Check(
            what,
            True,
            "works",
            DEMO,
        )
    reason = (process.stderr or process.stdout).strip().replace(
        "\n", "; "
    ) or "refused"
    return Check(
        what,
        False,
        reason,
        DEMO,
        "use a kernel with it, and run with CAP_NET_ADMIN",
    )


def machine(
    server: Server | None = None, needed_for: str = _SERVERS
) -> Iterator[Check]:
    """The needs of a lab's server; with one of the lab file, whether this machine has them."""
    from patchlight.deploy.check_machine import judge_machine
    from patchlight.deploy.facts import facts_here
    from patchlight.testbed.lab.model import Server

    server = server or Server(
        platform.node(),
        management=None,
        gpus=(),
        nics=(),
    )
    try:
        facts = facts_here()
    except PatchlightError as error:
        yield Check(
            "found",
            None,
            error.message,
            needed_for,
            error.hint or "",
        )
        return
    for finding in judge_machine(server, facts, "docker"):
        good = finding.ok
        found = finding.found
        if finding.check == "Docker engine":
            purpose = "Docker workers (process workers need none)"
            yield Check(
                finding.check,
                good,
                found,
                purpose,
                "" if good else _start_docker(),
            )
        else:
            yield Check(
                finding.check,
                good,
                found,
                needed_for,
                "" if good else finding.remedy,
            )


def _start_docker() -> str:
    start = "sudo systemctl start docker"
    if not Path("/run/systemd/system").exists():
        # A private engine that leaves the machine's iptables alone.
        start = f"export DOCKER_HOST=$(sudo bash {quoted_deploy_file('docker-engine.sh')} start)"
    return (
        start
        if shutil.which("dockerd", path=_PATH)
        else f"{_apt('docker.io')} && {start}"
    )


def _packages() -> Iterator[Check]:
    """Import every package in a process of its own: some of them patch what they find."""
    requirements = [
        requirement.partition(";")[0].strip()
        for requirement in importlib.metadata.requires("patchlight") or ()
        if "extra ==" not in requirement or requirement.startswith("ryu")
    ]
    packages = [
        re.split(r"[^\w.-]", requirement)[0] for requirement in requirements
    ]
    modules = [
        _IMPORT_NAMES.get(name, name.lower().replace("-", "_"))
        for name in packages
    ]
    pairs = json.dumps([*zip(modules, packages, strict=True)])
    process = _run(
        [
            sys.executable,
            "-c",
            _IMPORT,
            pairs,
        ],
        _IMPORT_PATIENCE_S,
    )
    last_line = process.stdout.strip().rpartition("\n")[2]
    imported: dict[str, tuple[bool, str]] = (
        json.loads(last_line) if not process.returncode else {}
    )
    failure = process.stderr.strip()[-120:] or "cannot be imported"
    for requirement, package, module in zip(
        requirements,
        packages,
        modules,
        strict=True,
    ):
        good, what = imported.get(module, (False, failure))
        install = (
            f"{shlex.quote(sys.executable)} -m pip install '{requirement}'"
        )
        if package == "ryu":
            install = f"PIP_CONSTRAINT={deploy_file('ryu-constraint.txt').as_uri()} {install}"
        purpose = _PURPOSES.get(package, DEMO)
        yield Check(
            f"Python package {package}",
            good,
            what,
            purpose,
            "" if good else install,
        )


def _apt(packages: str) -> str:
    if shutil.which("apt-get", path=_PATH):
        return f"sudo apt-get install -y {packages}"
    return f"install the packages that Debian calls {packages}"


def _run(
    command: list[str], patience_s: float = _PATIENCE_S
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(
            command,
            1,
            "",
            reason(error),
        )
