"""Whether the servers of a lab are ready for a deployment: what is wrong, and how it is mended."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from patchlight.deploy.facts import NicFacts, ServerFacts, read_facts
from patchlight.deploy.ssh import HostKeyRefused, LoginRefused, Unreachable, logged_in, ssh_place
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab import Lab, Nic, Server
from patchlight.testbed.units import format_rate

_AT_ONCE = 32
_PYTHON = (3, 11)
# For the bundle, an environment made of it, and the one before, to go back to.
_LEAST_FREE_BYTES = 2 << 30
_MOST_OFFSET_S = 1.0
_STAGES: Mapping[type[PatchlightError], str] = {
    Unreachable: "reachable",
    HostKeyRefused: "host key",
    LoginRefused: "login",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of one server. ``ok`` is ``None`` where it cannot be told.

    ``found`` says what is there, ``remedy`` what to do where that is wrong.
    """

    server: str
    check: str
    ok: bool | None
    found: str
    remedy: str = ""

    @property
    def state(self) -> str:
        """``ok``, ``wrong`` or ``unknown``."""
        return {True: "ok", False: "wrong", None: "unknown"}[self.ok]


def check_servers(lab: Lab, progress: Callable[[int, int], None]) -> list[Finding]:
    """Look at all servers at once; ``progress`` hears how many of how many are done.

    The findings are in the order of the servers. A server that fails stops no other.
    """
    facts: dict[str, ServerFacts | PatchlightError] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = {pool.submit(_ask, server): server.name for server in lab.servers}
        for done, future in enumerate(as_completed(asked), 1):
            facts[asked[future]] = future.result()
            progress(done, len(asked))
    return list(judge(lab, facts))


def _ask(server: Server) -> ServerFacts | PatchlightError:
    try:
        with logged_in(server) as client:
            return read_facts(client, server.name)
    except PatchlightError as error:
        return error


def judge(lab: Lab, facts: Mapping[str, ServerFacts | PatchlightError]) -> Iterator[Finding]:
    """What follows from what the servers told, or from the errors that they gave instead."""
    mtus = Counter(
        told.nics[interface].mtu
        for server in lab.servers
        if isinstance(told := facts[server.name], ServerFacts)
        for interface in map(_interface, server.nics)
        if interface in told.nics
    )
    # Of two that are as frequent, the larger: so the answer does not change by itself.
    usual_mtu = max(mtus, key=lambda mtu: (mtus[mtu], mtu), default=None)
    for server in lab.servers:
        told = facts[server.name]
        if isinstance(told, PatchlightError):
            check = _STAGES.get(type(told), "commands")
            yield Finding(server.name, check, False, told.message, told.hint or "")
            continue
        host, port = ssh_place(server)
        source = "of the lab file" if server.ssh.host_key else "in known_hosts"
        yield Finding(server.name, "reachable", True, f"{host} port {port}")
        yield Finding(server.name, "host key", True, f"the one {source}")
        yield from _software(server, told)
        for nic in server.nics:
            yield _nic(server, nic, told.nics.get(_interface(nic)))
        yield from _mtus(server, told, usual_mtu)
        yield _clock(server.name, told)


def _interface(nic: Nic) -> str:
    return nic.interface or nic.name


def _software(server: Server, facts: ServerFacts) -> Iterator[Finding]:
    refusal = facts.sudo_refusal
    user = server.ssh.user or "the user who logs in"
    yield Finding(
        server.name,
        "sudo",
        refusal is None,
        refusal or "without a password",
        f"let {user} use sudo without a password: a line 'NAME ALL=(ALL) NOPASSWD: ALL' in "
        f"/etc/sudoers.d on {server.name}",
    )
    version = ".".join(map(str, facts.python)) if facts.python else "none"
    good = facts.python is not None and facts.python[:2] >= _PYTHON and facts.has_venv
    without = "" if facts.has_venv or not facts.python else ", without venv"
    yield Finding(
        server.name,
        "Python",
        good,
        version + without,
        f"install Python 3.11 or newer with venv: apt-get install python3 python3-venv, "
        f"on {server.name}",
    )
    free = facts.free_bytes
    yield Finding(
        server.name,
        "free disk",
        None if free is None else free >= _LEAST_FREE_BYTES,
        "not told" if free is None else f"{free / (1 << 30):.1f} GiB in /opt",
        f"make room in /opt of {server.name}: 2 GiB",
    )


def _nic(server: Server, nic: Nic, found: NicFacts | None) -> Finding:
    check, name = f"NIC {nic.name}", _interface(nic)
    if found is None:
        remedy = f"say in the lab file which interface of {server.name} it is: interface: NAME"
        return Finding(server.name, check, False, f"no interface {name}", remedy)
    if found.driver is None:
        return Finding(server.name, check, None, f"{name} is virtual: its rate says nothing")
    if found.rate_bps is None:
        remedy = f"plug it in, or bring it up: ip link set {name} up, on {server.name}"
        return Finding(server.name, check, None, f"{name} ({found.driver}) has no link", remedy)
    rate = format_rate(found.rate_bps)
    good = nic.rate_bps is None or nic.rate_bps == found.rate_bps
    claimed = "" if good or nic.rate_bps is None else f", not {format_rate(nic.rate_bps)}"
    remedy = "correct its rate in the lab file, or see why the link is at another one: ethtool"
    return Finding(server.name, check, good, f"{name} ({found.driver}), {rate}{claimed}", remedy)


def _mtus(server: Server, facts: ServerFacts, usual: int | None) -> Iterator[Finding]:
    names = [name for name in map(_interface, server.nics) if name in facts.nics]
    others = [name for name in names if facts.nics[name].mtu != usual]
    if names:
        found = ", ".join(f"{name} has {facts.nics[name].mtu}" for name in others) or str(usual)
        commands = " && ".join(f"ip link set {name} mtu {usual}" for name in others)
        remedy = f"make it {usual}, as of most NICs of the lab: {commands}, on {server.name}"
        yield Finding(server.name, "MTU", not others, found, remedy)


def _clock(server: str, facts: ServerFacts) -> Finding:
    offset, uncertain = facts.clock_offset_s, facts.clock_uncertainty_s
    way = "ahead" if offset > 0 else "behind"
    found = f"{abs(offset):.3f} s {way}, ± {uncertain:.3f} s"
    good = abs(offset) - uncertain <= _MOST_OFFSET_S
    remedy = f"have {server} keep time by the network: apt-get install chrony"
    return Finding(server, "clock", good, found, remedy)
