"""Recognises files of other programs that are given as lab files."""

import json
import re
from typing import NamedTuple

BEGIN = "'patchlight lab init' writes one to start from"
_OWN = {
    "servers",
    "packet_switches",
    "circuit_switches",
    "wavelength_switches",
    "fibres",
}
_OWN |= {"passive_parts", "network"}
_WIRE = (
    f"describe its nodes and links as servers, switches and fibres; {BEGIN}"
)
_READ = "write a lab file from it: patchlight lab generate FILE -o lab.yaml"
_GNPY = (
    f"describe its optical paths as switches, and fibres with a loss; {BEGIN}"
)
_SHOW = (
    "Patchlight writes the topology for it: patchlight lab show LAB --format"
)
_NODES = f"describe its nodes with GPUs as servers; {BEGIN}"
_IMAGE = "a job runs an image: patchlight job submit NAME --image IMAGE"
_SONIC = f"describe its switch under 'packet_switches'; {BEGIN}"
_SUBMIT = "submit it: patchlight job submit FILE"
_POLICY = "name a policy in a lab file's 'policies', as FILE.py:CLASS"
_SLURM_YAML = r"""^(?:- +|-[ \t]*\n +|\[ *\{ *)["']?(?:topology|cluster_default)["']?[ \t]*:"""
_SLURM_INCLUDE = r"(?i)^[ \t]*include[ \t]+[^\s:]+[ \t]*$"
_TRACE = (
    r"\A\s*(?:;|(?:\w+\|)*JobID(?:Raw)?\||(?:-?\d\S*\s+){17}-?\d|"
    r"[\w,]*(?:(?:submit|creation)_time|duration,num_gpus)\b[\w,]*\s*$)"
)


class _Kind(NamedTuple):
    """A kind of file, by a ``pattern`` of its text, all of its top ``keys``, one of ``any_key``."""

    what: str
    to_do: str
    pattern: str = ""
    keys: tuple[str, ...] = ()
    any_key: tuple[str, ...] = ()


def _inner_key(*names: str) -> str:
    """A pattern of a key that begins a line, or stands in braces."""
    return rf"""(?:^|[{{,])[ \t-]*["']?(?:{"|".join(names)})["']?[ \t]*:"""


_KINDS = (
    _Kind(
        "a Mininet program",
        _WIRE,
        r"^[ \t]*(?:from|import) +(?:mininet|mn_wifi|containernet)\b",
    ),
    _Kind(
        "a topology of Mininet's MiniEdit",
        _WIRE,
        keys=("hosts", "switches", "links"),
    ),
    _Kind("a GNS3 project", _WIRE, keys=("project_id", "topology")),
    _Kind(
        "a containerlab topology",
        _READ,
        r"\b(?:nodes|kinds)[\"']?\s*:",
        ("topology",),
    ),
    _Kind(
        "a topology of nodes and links, such as netlab's or CML's",
        _WIRE,
        keys=("nodes", "links"),
    ),
    _Kind("a Kathará lab", _WIRE, r"^\w+\[(?:\d+|image)\] *="),
    _Kind(
        "a graph (GraphML, GML or DOT)",
        _WIRE,
        r"<graphml\b|^(?:strict +)?(?:di)?graph\b.*[{[]",
    ),
    _Kind("an InfraGraph infrastructure", _READ, keys=("infrastructure",)),
    _Kind(
        "an InfraGraph infrastructure", _READ, keys=("devices", "instances")
    ),
    _Kind("a GNPy network", _GNPY, keys=("elements", "connections")),
    _Kind(
        "a GNPy equipment library", _GNPY, any_key=("Edfa", "Roadm", "Span")
    ),
    _Kind("a GNPy list of services", _GNPY, keys=("path-request",)),
    _Kind(
        "a GNPy network",
        _GNPY,
        r"""^[ \t{]*["']?(?:gnpy|ietf)-network[\w-]*:""",
    ),
    _Kind(
        "a GNPy file of parameters",
        _GNPY,
        any_key=("spectrum", "raman_params", "nli_params", "type_variety"),
    ),
    _Kind(
        "a GNPy file of parameters",
        _GNPY,
        r"""^[ \t{]*["']?gnpy-[\w-]+:""",
    ),
    _Kind(
        "an Ansible inventory",
        _NODES,
        _inner_key("hosts", "children"),
        ("all",),
    ),
    _Kind(
        "a network of ASTRA-sim",
        "simulate it: --network astra:FILE",
        keys=("npus_count",),
    ),
    _Kind(
        "Slurm's topology.conf",
        _READ,
        r"(?i)^[ \t]*(?:Switch|Block)Name *=",
    ),
    _Kind("Slurm's topology.yaml", _READ, _SLURM_YAML),
    _Kind(
        "Slurm's gres.conf",
        _NODES,
        r"(?i)^[^#\n]*\bName *= *gpu\b|^[ \t]*AutoDetect *=",
    ),
    _Kind(
        "Slurm's slurm.conf",
        _NODES,
        r"(?i)^[ \t]*(?:ClusterName|SlurmctldHost|ControlMachine|(?:Node|Partition)Name) *=",
    ),
    _Kind(
        "a Slurm batch script",
        "submit its program: patchlight job submit NAME -- COMMAND",
        r"^#SBATCH ",
    ),
    _Kind(
        "a Slurm file that includes others",
        f"{_SHOW} slurm-conf",
        _SLURM_INCLUDE,
    ),
    _Kind(
        "a Kubernetes manifest", f"{_SHOW} kueue", keys=("apiVersion", "kind")
    ),
    _Kind(
        "a Docker Compose file",
        _IMAGE,
        _inner_key("image", "build"),
        ("services",),
    ),
    _Kind(
        "a SONiC configuration",
        _SONIC,
        any_key=("DEVICE_METADATA", "PORT", "VLAN_MEMBER"),
    ),
    _Kind(
        "a Patchlight job file",
        _SUBMIT,
        _inner_key("workers"),
        ("jobs",),
    ),
    _Kind(
        "a Patchlight job file",
        _SUBMIT,
        any_key=("model", "iterations", "command", "gradient"),
    ),
    _Kind(
        "a learned policy's card",
        "name it in a lab file's 'policies'",
        r'"format": *"patchlight-p',
    ),
    _Kind(
        "an experiment's result",
        "its report.html shows it",
        keys=("experiment", "provenance"),
    ),
    _Kind("a Python program", _POLICY, r"^(?:import|from|class|def) +\w+"),
    _Kind(
        "a job trace", "simulate it: patchlight simulate --trace FILE", _TRACE
    ),
)
"""Of several that match, the first counts."""


def recognised(text: str) -> str | None:
    """What a text is if not a lab file, and what to do with it; ``None`` if it may be one."""
    keys = _keys(text)
    if not keys.isdisjoint(_OWN):
        return None
    for kind in _KINDS:
        if not keys.issuperset(kind.keys) or (
            kind.any_key and keys.isdisjoint(kind.any_key)
        ):
            continue
        if re.search(kind.pattern, text, re.MULTILINE):
            return f"this is {kind.what}, not a lab file: {kind.to_do}"
    return None


def _keys(text: str) -> set[str]:
    """The keys at the top of a JSON or YAML text, several documents and all that is not YAML."""
    if text.lstrip().startswith("{"):
        try:
            return set(json.loads(text))
        except (ValueError, RecursionError):
            return set()
    return set(
        re.findall(
            r"^[\"']?([\w./-]+)[\"']?[ \t]*:(?=\s|$)", text, re.MULTILINE
        )
    )
