"""The folder that a command's results go to, and the files in it."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from patchlight.console.rendering import say


def give_to_caller(paths: Sequence[Path]) -> None:
    """Under sudo, results belong to who called it, not to root."""
    owner, group = os.environ.get("SUDO_UID"), os.environ.get("SUDO_GID")
    if os.geteuid() == 0 and owner and group:
        for path in {*paths, *(p.parent for p in paths if p.parent.name == "results")}:
            os.chown(path, int(owner), int(group))


def results_folder(output: Path | None, name: str) -> Path:
    """The folder that ``--output`` names, else one with this name and the time."""
    return output or Path("results") / time.strftime(f"{name}-%Y%m%d-%H%M%S")


def say_written(files: Sequence[Path], folder: Path) -> None:
    """Say which plots and ``result.json`` there are."""
    pictures = ", ".join(file.name for file in files if file.suffix == ".png")
    say(f"Plots ({pictures}, also as PDF and SVG) and result.json: {folder}/")
