"""Options that mean the same in many commands, described once."""

from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource

_SETS: dict[str, dict[str, "SharedOption"]] = {}


class SharedOption(click.Option):
    """An option that the help of a group describes, and the help of each command only names.

    ``of`` is the group, as ``ocs``; empty for ``patchlight`` itself. Given twice, an option with
    a value is an error. ``instead`` are parameters that exclude it: a value from the environment
    gives way to them.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        of: str | None = "",
        instead: tuple[str, ...] = (),
        **settings: Any,
    ) -> None:
        super().__init__(names, **settings)
        self.of, self._instead = of, instead
        if of is not None:
            _SETS.setdefault(of, {}).setdefault(self.opts[-1], self)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """See ``click.Parameter``."""
        if self.is_flag or self.count or self.multiple:
            super().add_to_parser(parser, ctx)
        else:
            parser.add_option(obj=self, opts=self.opts, dest=self.name, action="append", nargs=1)

    def consume_value(
        self, ctx: click.Context, opts: Any
    ) -> tuple[Any, click.core.ParameterSource]:
        """See ``click.Parameter``."""
        given = opts.get(self.name)
        if isinstance(given, list) and not self.multiple:
            if len(given) > 1:
                raise click.UsageError(
                    f"{self.opts[-1]} is given twice: {' and '.join(given)}", ctx
                )
            opts = {**opts, self.name: given[0]}
        if rivals := [p for p in ctx.command.params if p.name in self._instead and p.name in opts]:
            if given is not None:
                raise click.UsageError(
                    f"{self.opts[-1]} and {rivals[0].opts[-1]} exclude each other: give one", ctx
                )
            return self.get_default(ctx), ParameterSource.DEFAULT
        return super().consume_value(ctx, opts)

    def full_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Its names and its text, for the group's help."""
        return super().get_help_record(ctx)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """One line for all of a set, in the place of its last option."""
        if self.of is None:
            return super().get_help_record(ctx)
        same = [p for p in ctx.command.params if isinstance(p, SharedOption) and p.of == self.of]
        if same[-1] is not self:
            return None
        names = ", ".join(sorted(option.opts[-1] for option in same))
        return names, f"Shared: see {' '.join(('patchlight', self.of)).strip()} --help."


def described(ctx: click.Context) -> list[tuple[str, str]]:
    """What the help of this group says of the options that its commands share."""
    found = _SETS.get(ctx.command_path.partition(" ")[2], {})
    records = (option.full_help_record(ctx) for _, option in sorted(found.items()))
    return [record for record in records if record is not None]
