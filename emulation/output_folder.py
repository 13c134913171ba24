"""The folder that results go to: whether they can be written there, found before the work."""

from pathlib import Path

from patchlight.testbed.errors import BadInput, PatchlightError


def check_output(folder: Path) -> None:
    """``PatchlightError`` if results could not be written there.

    The folder is made to try, and taken away again if it was not there.
    """
    there = folder.exists()
    if there and not folder.is_dir():
        raise BadInput(f"results cannot go to {folder}: that is a file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
        if not there:
            folder.rmdir()
    except OSError as error:
        raise cannot_write(folder, error) from error


def cannot_write(folder: Path, error: OSError) -> PatchlightError:
    """The error of results that could not be written into ``folder``."""
    return PatchlightError(
        f"cannot write the results to {folder}: {error.strerror or error}",
        hint="choose another folder with --output",
    )
