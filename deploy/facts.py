"""Facts that a server reports: parses the lines that ``facts.sh`` prints."""

import json
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from patchlight.testbed.errors import PatchlightError, reason
from patchlight.testbed.linux import (
    deploy_file,
    docker_engine,
    quoted_deploy_file,
)

_PATIENCE_S = 90.0
_MOST_BYTES = 1 << 20


@dataclass(
    frozen=True,
    slots=True,
)
class NicFacts:
    """An interface: without ``driver`` it is virtual; ``pci`` is its card, ``port`` is from 1."""

    driver: str | None
    mtu: int
    rate_bps: int | None
    pci: str | None = None
    port: int = 1


@dataclass(
    frozen=True,
    slots=True,
)
class PciFacts:
    """A network card or GPU; ``path``: the bridges it hangs on, the outermost first, and itself.

    ``iommu``: the type of its IOMMU group, as the kernel calls it; ``None`` without an IOMMU.
    """

    vendor: int
    class_code: int
    driver: str | None
    numa: int | None
    path: tuple[str, ...]
    iommu: str | None = None

    @property
    def is_nvidia_gpu(self) -> bool:
        """Whether it is one that computes (some show no picture)."""
        return self.vendor == 0x10DE and self.class_code >> 16 == 0x03

    @property
    def is_network_card(self) -> bool:
        """Whether it is an Ethernet or InfiniBand card."""
        return self.class_code >> 16 == 0x02


@dataclass(
    frozen=True,
    slots=True,
)
class RdmaFacts:
    """A port of an RDMA device: of the card ``pci``, or in software on the interface ``parent``."""

    name: str
    port: int
    state: str
    link_layer: str
    pci: str | None
    parent: str | None


@dataclass(
    frozen=True,
    slots=True,
)
class GpuFacts:
    """A GPU as NVIDIA's driver shows it."""

    uuid: str
    model: str
    pci: str


@dataclass(
    frozen=True,
    slots=True,
)
class DockerFacts:
    """The Docker engine at ``url``; ``answers`` is ``None`` if it was not tried."""

    url: str
    answers: bool | None
    api: str = ""
    said: str = ""
    runtimes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


@dataclass(
    frozen=True,
    slots=True,
)
class ServerFacts:
    """A server's hardware and software, as ``user`` sees it.

    ``clock_offset_s``: by how much its clock is ahead of ours, give or take
    ``clock_uncertainty_s``. ``sudo_refusal`` is what ``sudo`` said, ``None`` where it works.
    ``python`` is a version, with ``has_venv`` if it can make virtual environments; ``free_bytes``
    are those of ``/opt``; ``systemd`` its version. ``pci`` and ``nics`` are by address and name;
    ``modules`` says of a kernel module whether it is ``loaded``, ``there`` or ``absent``.
    ``bridges`` has the ACS control register of each PCI bridge (0: no ACS), ``None`` if unreadable.
    ``driver`` is the version of NVIDIA's, of ``open_driver`` modules or not, ``smi_refusal`` what
    ``nvidia-smi`` said instead of naming GPUs, ``toolkit`` and ``bwrap`` are versions of programs,
    ``cdi`` the files that tell engines of NVIDIA's GPUs; ``gpu_sockets`` the folder of emulated
    ones. ``claims`` has the network namespace of its worker for each GPU and NIC in use.
    """

    clock_offset_s: float
    clock_uncertainty_s: float
    user: str = ""
    sudo_refusal: str | None = None
    python: tuple[int, ...] | None = None
    has_venv: bool = False
    free_bytes: int | None = None
    systemd: str | None = None
    nics: Mapping[str, NicFacts] = field(default_factory=dict)
    pci: Mapping[str, PciFacts] = field(default_factory=dict)
    rdma: tuple[RdmaFacts, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)
    bridges: Mapping[str, int | None] = field(default_factory=dict)
    kernel: str = ""
    driver: str | None = None
    open_driver: bool = False
    gpus: tuple[GpuFacts, ...] = ()
    smi_refusal: str | None = None
    toolkit: str | None = None
    bwrap: str | None = None
    cdi: tuple[str, ...] = ()
    gpu_sockets: str | None = None
    docker: DockerFacts | None = None
    claims: tuple[str, ...] = ()


class NoFacts(ValueError):
    """A server printed something unexpected."""


def parse_facts(
    lines: Iterable[str],
    began: float,
    ended: float,
) -> ServerFacts:
    """The script's output; our clock around its first line. ``NoFacts`` for something else."""
    told: dict[str, list[str]] = {}
    for line in lines:
        key, _, rest = line.strip().partition(" ")
        told.setdefault(key, []).append(rest)
    try:
        return _facts(told, began, ended)
    except (
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        shown = (
            repr(error)
            if "time" in told
            else "it does not begin with the time"
        )
        raise NoFacts(f"unexpected answer: {shown}") from error


def _facts(
    told: Mapping[str, list[str]],
    began: float,
    ended: float,
) -> ServerFacts:
    def one(key: str) -> str | None:
        return told.get(key, [""])[0].strip() or None

    python, disk = (one(key) or "" for key in ("python", "disk"))
    version, _, venv = python.partition(" ")
    return ServerFacts(
        clock_offset_s=float(told["time"][0]) - (began + ended) / 2,
        clock_uncertainty_s=(ended - began) / 2,
        user=one("user") or "",
        python=tuple(map(int, version.split("."))) if version else None,
        has_venv=venv == "venv",
        free_bytes=int(disk.split()[3]) * 1024
        if len(disk.split()) > 3
        else None,
        systemd=one("systemd") or ("systemd" in told and "?") or None,
        nics={name: _nic(values) for name, values in _named(told, "nic")},
        pci={name: _pci(values) for name, values in _named(told, "pci")},
        rdma=tuple(
            _rdma(name, values) for name, values in _named(told, "rdma")
        ),
        modules={
            words[0]: words[1]
            for words in map(str.split, told.get("module", []))
        },
        bridges={
            name: _acs(values) for name, values in _named(told, "bridge")
        },
        kernel=one("kernel") or "",
        driver=one("nvidia"),
        open_driver="nvidia-open" in told,
        gpus=tuple(_gpu(line) for line in told.get("gpu", [])),
        smi_refusal=one("smi"),
        toolkit=one("toolkit"),
        gpu_sockets=one("gpu-sockets"),
        bwrap=one("bwrap"),
        cdi=tuple(
            spec[1]
            for spec in (line.split(" ", 1) for line in told.get("cdi", []))
            if spec[0]
        ),
        claims=tuple(told.get("claim", ())),
        docker=_docker(json.loads(told["docker"][0]))
        if "docker" in told
        else None,
    )


def _named(
    told: Mapping[str, list[str]], key: str
) -> Iterator[tuple[str, Mapping[str, str | None]]]:
    """Lines of a name and ``key=value``; ``-`` is no value."""
    for line in told.get(key, []):
        name, *pairs = line.split()
        values = dict(pair.split("=", 1) for pair in pairs)
        yield (
            name,
            {
                key: None if value == "-" else value
                for key, value in values.items()
            },
        )


def _nic(values: Mapping[str, str | None]) -> NicFacts:
    driver = values["driver"]
    mbps = int(values["speed"] or -1)
    return NicFacts(
        driver=driver,
        mtu=int(values["mtu"] or 0),
        rate_bps=mbps * 10**6 if mbps > 0 and driver is not None else None,
        pci=values["pci"],
        port=int(values["port"] or 0) + 1,
    )


def _pci(values: Mapping[str, str | None]) -> PciFacts:
    numa = int(values["numa"] or -1)
    return PciFacts(
        vendor=int(values["vendor"] or "0", 16),
        class_code=int(values["class"] or "0", 16),
        driver=values["driver"],
        numa=numa if numa >= 0 else None,
        path=tuple((values["path"] or "").split("/")),
        iommu=values.get("iommu"),
    )


def _acs(values: Mapping[str, str | None]) -> int | None:
    control = values["acs"]
    if control == "none":
        return 0
    return None if control is None else int(control)


def _rdma(name: str, values: Mapping[str, str | None]) -> RdmaFacts:
    state = values["state"] or "unknown"
    link_layer = values["link"] or "unknown"
    number = int(values["port"] or 1)
    return RdmaFacts(
        name,
        number,
        state,
        link_layer,
        values["pci"],
        values["parent"],
    )


def _gpu(line: str) -> GpuFacts:
    uuid, pci, model = (part.strip() for part in line.split(",", 2))
    domain, rest = pci.split(":", 1)
    # NVIDIA writes a domain of eight digits and capitals, the kernel one of four.
    return GpuFacts(uuid, model, f"{int(domain, 16):04x}:{rest.lower()}")


def _docker(told: Mapping[str, object]) -> DockerFacts:
    def words(key: str) -> tuple[str, ...]:
        found = told.get(key) or []
        return tuple(map(str, found)) if isinstance(found, list) else ()

    answers = told.get("answers")
    return DockerFacts(
        url=str(told.get("url", "")),
        answers=answers if isinstance(answers, bool) else None,
        api=str(told.get("api", "")),
        said=str(told.get("said", "")),
        runtimes=words("runtimes"),
        devices=words("devices"),
    )


def facts_script() -> str:
    """``facts.sh``, and then what asks the Docker engine."""
    ask = Path(docker_engine.__file__).read_text(encoding="utf-8")
    shell = deploy_file("facts.sh").read_text(encoding="utf-8")
    return (
        f"{shell}\npython3 - tells <<'END OF PROGRAM'\n{ask}\nEND OF PROGRAM\n"
    )


def facts_here(root: Path | None = None) -> ServerFacts:
    """The facts of this machine, or of a folder ``root`` like ``/``; else ``PatchlightError``."""
    now = time.time()
    try:
        done = subprocess.run(
            [
                "sh",
                "-s",
                "--",
                str(root or ""),
            ],
            input=facts_script(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
        return parse_facts(
            done.stdout[:_MOST_BYTES].splitlines(), now, time.time()
        )
    except (OSError, NoFacts, subprocess.TimeoutExpired) as error:
        raise PatchlightError(
            f"collecting facts about this machine: {reason(error)}",
            hint=f"Run it by hand to see more: sh {quoted_deploy_file('facts.sh')}",
        ) from error
