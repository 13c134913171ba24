"""Reads files of other programs that describe a cluster: InfraGraph, containerlab, Slurm."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from patchlight.testbed.errors import BadInput
from patchlight.testbed.generate.containerlab import read_containerlab
from patchlight.testbed.generate.infragraph import read_infragraph
from patchlight.testbed.generate.plant import Plant
from patchlight.testbed.generate.slurm_topology import (
    read_topology_conf,
    read_topology_yaml,
)
from patchlight.testbed.io.reader import too_much

KINDS = "an InfraGraph infrastructure, a containerlab topology, or Slurm's topology.conf or .yaml"


def read_plant(
    file: Path,
    *,
    ocs: Mapping[str, str],
    gpus: int | None = None,
) -> Plant:
    """The devices and cables of a file, by what is in it.

    ``ocs`` names what an InfraGraph infrastructure has as OCSs, each with its driver; ``gpus`` is
    the number of GPUs of each node of Slurm's (default: 1). Raises ``BadInput`` for any other
    file and all that is wrong in it.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{file} is not text in UTF-8") from error
    what = file.name
    document = None if file.suffix == ".conf" else _document(text, what)
    slurm = isinstance(document, list) or not isinstance(document, Mapping)
    keys = set() if slurm else set(document or ())
    if ocs and not ({"infrastructure", "instances"} & keys):
        raise BadInput(
            f"--ocs names instances of an InfraGraph infrastructure, which {what} is not"
        )
    if gpus is not None and not slurm:
        raise BadInput(
            f"--gpus is for Slurm's nodes: {what} has its own number of GPUs"
        )
    if isinstance(document, Mapping):
        if keys & {"infrastructure", "instances"}:
            return read_infragraph(document, what, ocs)
        if "topology" in keys:
            return read_containerlab(document, what)
    elif isinstance(document, list):
        return read_topology_yaml(document, what, gpus or 1)
    elif file.suffix == ".conf" or "=" in text:
        return read_topology_conf(text, what, gpus or 1)
    raise BadInput(f"{what} is not a file that Patchlight can read: {KINDS}")


def _document(text: str, what: str) -> Any:
    try:
        if problem := too_much(text):
            raise BadInput(f"{what}: {problem}")
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(f"{what} is not YAML: {error}") from error
