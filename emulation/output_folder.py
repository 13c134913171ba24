"""The folder that results go to: whether they can be written there, and how they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchlight.testbed.errors import BadInput, PatchlightError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOT_FORMATS = ("png", "pdf", "svg")
"""A picture to look at, and two for papers, which stay sharp."""
_DPI = 130


def save_plot(figure: Figure, plot: Path) -> list[Path]:
    """Write a plot in all formats, ``plot`` being its name without one; the files."""
    files = [plot.with_name(f"{plot.name}.{suffix}") for suffix in PLOT_FORMATS]
    for file in files:
        figure.savefig(file, dpi=_DPI)
        # It is laid out now, for all formats: each more time would cost as much as drawing it.
        figure.set_layout_engine(None)
    return files


def write_result(result: Mapping[str, Any], folder: Path) -> Path:
    """Write ``result.json`` into the folder, which is made; the file. ``OSError`` as it comes."""
    file = folder / "result.json"
    folder.mkdir(parents=True, exist_ok=True)
    # No NaN: it would be no JSON.
    text = json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False)
    file.write_text(text + "\n", encoding="utf-8")
    return file


def write_report(
    result: Mapping[str, Any], folder: Path, plots: Mapping[str, Callable[[], Figure]]
) -> list[Path]:
    """Write ``result.json`` and these plots by name into the folder; the files, in this order."""
    try:
        files = [write_result(result, folder)]
        for name, drawn in plots.items():
            files += save_plot(drawn(), folder / name)
    except OSError as error:
        raise cannot_write(folder, error) from error
    return files


def check_output(folder: Path) -> None:
    """``PatchlightError`` if results could not be written there.

    The folder is made to try, and all that was made is taken away again.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    if not missing and not folder.is_dir():
        raise BadInput(f"results cannot go to {folder}: that is a file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise cannot_write(folder, error) from error
    finally:
        with suppress(OSError):
            for each in missing:
                each.rmdir()


def cannot_write(folder: Path, error: OSError) -> PatchlightError:
    """The error of results that could not be written into ``folder``."""
    return PatchlightError(
        f"cannot write the results to {folder}: {error.strerror or error}",
        hint="choose another folder with --output",
    )
