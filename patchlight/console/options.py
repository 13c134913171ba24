"""Options that many commands share: the lab, numbers with bounds and units, folders of results."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from patchlight.testbed.errors import BadInput

if TYPE_CHECKING:
    pass


Command = TypeVar("Command", bound=Callable[..., Any])
LAB_VARIABLE = "PATCHLIGHT_LAB"


def complete_lab(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Labs that are up, built-in labs, and files."""
    # Imported late, as all that needs packages: `doctor` says which of them are missing.
    from patchlight.testbed.labfile.reader import builtin_labs
    from patchlight.testbed.wire.lab_api import RUN_ROOT

    up = sorted(path.parent.name for path in RUN_ROOT.glob("*/lab.yaml"))
    names = dict.fromkeys([*up, *builtin_labs()])
    items = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return [*items, CompletionItem(incomplete, type="file")]


class LabOption(click.Option):
    """``--lab``, by name or file. One from the environment gives way to options in its place."""

    def __init__(
        self, names: Sequence[str], *, instead: tuple[str, ...] = (), **settings: Any
    ) -> None:
        super().__init__(names, **settings)
        self._instead = instead

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """See ``click.Option``."""
        source = ctx.get_parameter_source
        # Options on the command line are processed first.
        others = [source(name) is ParameterSource.COMMANDLINE for name in self._instead]
        if source(self.name or "") is ParameterSource.ENVIRONMENT and any(others):
            value = self.default
        return super().process_value(ctx, value)


def lab_option(
    about: str = "The lab, by name or file; needed if several are up.",
    name: str = "lab_name",
    **settings: Any,
) -> Callable[[Command], Command]:
    """Give a command ``--lab``, which ``PATCHLIGHT_LAB`` says too, as its parameter ``name``."""
    settings |= {"metavar": "LAB", "envvar": LAB_VARIABLE, "show_envvar": True}
    settings |= {"shell_complete": complete_lab, "help": about}
    return click.option("--lab", name, cls=LabOption, **settings)


class FiniteFloat(click.FloatRange):
    """A range that ``nan`` and infinities, which Python reads as numbers, are outside of."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; a usage error for what is none."""
        if isinstance(value, str) and not value.isascii():
            self.fail(f"{value!r} is not a number", param, ctx)
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class Quantity(click.ParamType[Any]):
    """A number with its unit."""

    name = "quantity"

    def __init__(self, parse: Callable[[object], float]) -> None:
        self._parse = parse

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """What ``parse`` makes of it; a usage error for what it refuses."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except BadInput as error:
            self.fail(error.message, param, ctx)


AT_LEAST_0 = FiniteFloat(min=0)
ANY = FiniteFloat()


def results_option(
    default: str, what: str = "Where the results go."
) -> Callable[[Command], Command]:
    """``--output`` for a folder; ``default`` is what it is if nobody gives it, in words."""
    return click.option(
        "--output",
        type=click.Path(path_type=Path, file_okay=False),
        help=f"{what}  [default: {default}]",
    )


profiles_option: Callable[[Command], Command] = click.option(
    "--profiles",
    type=click.Path(path_type=Path),
    help="Folder with PipeDream's five profiles, or a clone of PipeDream.  [default: the cache, "
    "else the built-in computed ones]",
)
