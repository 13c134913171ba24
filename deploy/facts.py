"""What a server tells of itself over SSH: one small shell script, read with care."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import paramiko

from patchlight.testbed.errors import PatchlightError

_PATIENCE_S = 60.0
_MOST_BYTES, _LONGEST_LINE = 1 << 20, 1 << 10
# The time comes first: it is compared with ours at both ends of the wait for it.
_SCRIPT = r"""
echo "time $(date +%s.%N)"
if refusal=$(sudo -n true 2>&1); then echo "sudo yes"; else echo "sudo no $refusal" | head -n 1; fi
if command -v python3 >/dev/null; then
    echo "python $(python3 -c '
import sys
try:
    import ensurepip, venv
except ImportError:
    ensurepip = None
print(".".join(map(str, sys.version_info[:3])), "venv" if ensurepip else "-")
')"
fi
echo "disk $(df -Pk /opt | tail -n 1)"
for nic in /sys/class/net/*; do
    driver=$(readlink -f "$nic/device/driver") && driver=${driver##*/} || driver=-
    speed=$(cat "$nic/speed" 2>/dev/null) || speed=-1
    echo "nic ${nic##*/} $driver $(cat "$nic/mtu") ${speed:--1}"
done
"""


@dataclass(frozen=True, slots=True)
class NicFacts:
    """An interface of a server; no ``driver`` is a virtual one, whose rate says nothing."""

    driver: str | None
    mtu: int
    rate_bps: int | None


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server has.

    ``clock_offset_s``: by how much its clock is ahead of ours, give or take
    ``clock_uncertainty_s``. ``sudo_refusal`` is what ``sudo`` said, ``None`` where it works.
    ``python`` is a version, with ``has_venv`` if it can make virtual environments; ``free_bytes``
    are those of ``/opt``.
    """

    clock_offset_s: float
    clock_uncertainty_s: float
    sudo_refusal: str | None = None
    python: tuple[int, ...] | None = None
    has_venv: bool = False
    free_bytes: int | None = None
    nics: Mapping[str, NicFacts] = field(default_factory=dict)


def read_facts(client: paramiko.SSHClient, name: str) -> ServerFacts:
    """Ask a server over an open connection; ``PatchlightError`` if it does not answer."""
    try:
        script, output, _ = client.exec_command("sh -s", timeout=_PATIENCE_S)
        began = time.time()
        script.write(_SCRIPT)
        script.channel.shutdown_write()
        first = output.readline(_LONGEST_LINE)
        ended = time.time()
        rest = output.read(_MOST_BYTES).decode(errors="replace")
        return parse_facts([first, *rest.splitlines()], began, ended)
    except (OSError, ValueError, IndexError, paramiko.SSHException) as error:
        raise PatchlightError(
            f"asking {name} what it has: {error or type(error).__name__}",
            hint="Log in by hand, and see whether commands run there.",
        ) from error


def parse_facts(lines: Iterable[str], began: float, ended: float) -> ServerFacts:
    """The script's output; ``began`` and ``ended`` are our clock around its first line.

    ``ValueError`` or ``IndexError`` where it is something else.
    """
    nics: dict[str, NicFacts] = {}
    found: dict[str, list[str]] = {}
    for line in lines:
        words = line.split()
        if words[:1] == ["nic"]:
            name, driver, mtu, mbps = words[1:5]
            known = int(mbps) > 0 and driver != "-"
            nics[name] = NicFacts(
                None if driver == "-" else driver, int(mtu), int(mbps) * 10**6 if known else None
            )
        elif words:
            found.setdefault(words[0], words[1:])
    sudo, python, disk = (found.get(key, []) for key in ("sudo", "python", "disk"))
    return ServerFacts(
        clock_offset_s=float(found["time"][0]) - (began + ended) / 2 if "time" in found else _no(),
        clock_uncertainty_s=(ended - began) / 2,
        sudo_refusal=None if sudo[:1] == ["yes"] else " ".join(sudo[1:]) or "there is no sudo",
        python=tuple(map(int, python[0].split("."))) if python else None,
        has_venv=python[1:] == ["venv"],
        free_bytes=int(disk[3]) * 1024 if len(disk) > 3 else None,
        nics=nics,
    )


def _no() -> float:
    raise ValueError("what it answers is not what was expected")
