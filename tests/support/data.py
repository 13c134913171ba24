"""Published data sets that are not part of the project, for tests and benchmarks.

``PATCHLIGHT_DATA`` names the folder: ``pipedream/*.txt`` are PipeDream's profiles,
``traces/philly.csv`` is the Philly trace.
"""

import os
from pathlib import Path


def data_set(name: str) -> Path | None:
    """The file or folder of that name, like ``pipedream``; ``None`` if it is not at hand."""
    folder = os.environ.get("PATCHLIGHT_DATA")
    path = Path(folder) / name if folder else None
    return path if path is not None and path.exists() else None


def without(name: str) -> str:
    """Why a data set is not at hand, and what would bring it."""
    return f"no {name}: set PATCHLIGHT_DATA to the folder that has it"
