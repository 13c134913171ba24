"""The option ``--lab``, the same for all commands, and what ``simulate`` takes from that lab."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from patchlight.testbed.lab.queueing import PolicyChoice

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


_POLICIES = ("order", "placement", "topology", "elasticity", "partition")


def left_to_the_lab(policies: "PolicyChoice") -> tuple[dict[str, Any], dict[str, Any]]:
    """What a lab's file says of policies and no option of the present command does.

    First the policies, as options give them; then settings of a simulation, by field.
    """
    from patchlight.controller.policies.defragment import LOOKED_AT_EVERY_S

    context = click.get_current_context()

    def is_said(option: str) -> bool:
        return context.get_parameter_source(option) is not click.core.ParameterSource.DEFAULT

    named = {
        kind: (name,)
        for kind in _POLICIES
        if not is_said(kind) and (name := getattr(policies, kind)) is not None
    }
    settings: dict[str, Any] = {}
    if policies.minimum_gain_s is not None:
        settings["minimum_gain_s"] = policies.minimum_gain_s
    if policies.defragment and not is_said("defragment_s"):
        every_s = policies.defragment_every_s
        settings["defragment_s"] = LOOKED_AT_EVERY_S if every_s is None else every_s
    return named, settings
