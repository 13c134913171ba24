"""The option ``--lab``, the same for all commands, and what ``simulate`` takes from that lab."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from patchlight.testbed.policies import PolicyChoice

LAB_VARIABLE = "PATCHLIGHT_LAB"


def _complete(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    # Imported late, as all that needs packages: `doctor` says which of them are missing.
    from patchlight.cli.connection import complete_lab

    return complete_lab(context, parameter, incomplete)


class LabOption(click.Option):
    """``--lab``, by name or file. One from the environment gives way to options in its place."""

    def __init__(self, *names: Any, instead: tuple[str, ...] = (), **settings: Any) -> None:
        fixed: dict[str, Any] = {"metavar": "LAB", "envvar": LAB_VARIABLE, "show_envvar": True}
        super().__init__(*names, **fixed, shell_complete=_complete, **settings)
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
) -> Callable[[Any], Any]:
    """Give a command ``--lab``, which ``PATCHLIGHT_LAB`` says too, as its parameter ``name``."""
    return click.option("--lab", name, cls=LabOption, help=about, **settings)


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
