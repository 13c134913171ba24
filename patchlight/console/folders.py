"""Options for folders that many commands have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

C = TypeVar("C", bound=Callable[..., Any])


def results_option(default: str, what: str = "Where the results go.") -> Callable[[C], C]:
    """``--output`` for a folder; ``default`` is what it is if nobody gives it, in words."""
    return click.option(
        "--output",
        type=click.Path(path_type=Path, file_okay=False),
        help=f"{what}  [default: {default}]",
    )


profiles_option: Callable[[C], C] = click.option(
    "--profiles",
    type=click.Path(path_type=Path),
    help="Folder with PipeDream's five profiles, or a clone of PipeDream.  [default: the cache, "
    "else the built-in computed ones]",
)
