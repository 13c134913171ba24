"""``patchlight ocs`` in this process: what it prints, and how it ends."""

from collections.abc import Sequence
from dataclasses import dataclass

from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.testbed.errors import PatchlightError


@dataclass(frozen=True)
class OcsCommand:
    """Runs ``patchlight ocs`` with these options after each command's own."""

    options: Sequence[str]

    def __call__(self, *words: str, code: int = 0, text: str | None = None) -> str:
        """What was printed, the error included. ``code``: how it is to end; ``text``: its input."""
        result = CliRunner().invoke(cli, ["ocs", *words, *self.options], input=text)
        error = result.exception
        exit_code = error.exit_code if isinstance(error, PatchlightError) else result.exit_code
        assert exit_code == code, (result.output, error)
        return f"{result.output}{error or ''}"
