"""Reads PipeDream's profiles, which are not part of the project, from a folder."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs.files import read_graph
from patchlight.testbed.graphs.model import ComputationGraph

REPOSITORY = "https://github.com/msr-fiddle/pipedream"
_VISION = "image_classification"
_TRANSLATION = "translation"
_KINDS_AND_SUMS = {
    "alexnet": (
        _VISION,
        "e9a0bb73a0929b03be3a23cbcdf224c03ae39123bed685de4f1e17b65014d26b",
    ),
    "resnet18": (
        _VISION,
        "9514adf4714f637ebf45d614f61a79dac315ae6aaacbfa3f5a851a6531c863c4",
    ),
    "squeezenet1_0": (
        _VISION,
        "78938a95d1ca0fee63d9459271ec93761bd5c97e31c0ade8229a8fec0aedf830",
    ),
    "vgg16": (
        _VISION,
        "3e914ff5290644c6b1c871002d278e57fcc486c22ac07283480b7779f28e5b08",
    ),
    "gnmt": (
        _TRANSLATION,
        "2c5b8415ed45b34b7530d051023de388a7e0dbc02cec38f9e43610f29211dc5a",
    ),
}
SOURCES: Mapping[str, tuple[str, str]] = {
    name: (f"{kind}/profiles/{name}/graph.txt", checksum)
    for name, (kind, checksum) in _KINDS_AND_SUMS.items()
}
"""The five profiles of PAC-ML: name → (path under ``profiler/`` in PipeDream, SHA-256)."""


def profile_files(folder: Path) -> dict[str, Path]:
    """The five files by name: ``NAME.txt``, or as in a clone of PipeDream.

    ``BadInput`` names each that is missing.
    """
    found: dict[str, Path] = {}
    for name, (path, _) in SOURCES.items():
        candidates = (
            folder / f"{name}.txt",
            folder / path,
            folder / "profiler" / path,
        )
        if (file := next(filter(Path.is_file, candidates), None)) is not None:
            found[name] = file
    missing = [
        f"there is no {name}.txt" for name in SOURCES if name not in found
    ]
    if not folder.is_dir():
        missing = [f"{folder} is not a folder"]
    if missing:
        raise BadInput(
            f"cannot read PipeDream's profiles in {folder}: {'; '.join(missing)}",
            hint=f"clone them: git clone {REPOSITORY}",
        )
    return found


def read_profiles(
    files: Mapping[str, Path],
) -> tuple[list[ComputationGraph], bool]:
    """The graphs, and whether all are, byte for byte, what PAC-ML's experiments used.

    ``GraphFileError`` for the mistakes in one.
    """
    graphs = [read_graph(path) for path in files.values()]
    sums = {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in files.items()
    }
    return graphs, all(sums[name] == SOURCES[name][1] for name in files)
