"""Completion in the shell: the script for it, and which hosts, jobs and policies there are."""

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem, get_completion_class

from patchlight.console.connection import running_lab
from patchlight.console.rendering import print_document
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.wire.lab_api import api_address

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

_SHELLS = ("bash", "zsh", "fish")
_ANSWERS_WITHIN_S = 2.0


@click.command(
    epilog='For every new shell: in ~/.bashrc  eval "$(patchlight completion bash)", in ~/.zshrc '
    "the same with zsh; patchlight completion fish > ~/.config/fish/completions/patchlight.fish"
)
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands, options and names in a shell.

    Labs, hosts, ports, jobs and policies complete too.
    """
    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root().command
    print_document(found(root, {}, "patchlight", "_PATCHLIGHT_COMPLETE").source())


def completer(
    candidates: Callable[[Lab, click.Context, str], Iterable[str]], *, several: bool = False
) -> Complete:
    """Completes names of the lab that a command is about; ``several`` are joined by commas."""

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        try:
            lab = running_lab(context.params.get("lab_name"))
            names = dict.fromkeys(candidates(lab, context, last))
        except PatchlightError:
            return []  # no lab, no names; an error would land in the user's prompt
        return [CompletionItem(before + comma + n) for n in names if n.startswith(last)]

    return complete


def _jobs(lab: Lab, context: click.Context, incomplete: str) -> Iterable[str]:
    from patchlight.client.client import ControllerClient

    address = context.params.get("address") or api_address(lab)
    with ControllerClient(address, _ANSWERS_WITHIN_S) as client:
        return [status["id"] for status in client.jobs_meant(incomplete)]


complete_host = completer(lambda lab, *_: lab.host_names)
complete_hosts = completer(lambda lab, *_: lab.host_names, several=True)
complete_job = completer(_jobs)


def complete_policy(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Policies that have a name, of the parameter's kind if it is called so; and files."""
    from patchlight.controller.policies.contract import KINDS
    from patchlight.controller.policies.registry import policies

    before, comma, last = incomplete.rpartition(",")
    kind = parameter.name if parameter.name in KINDS else None
    names = dict.fromkeys(found.name for found in policies(kind))
    items = [CompletionItem(before + comma + n) for n in names if n.startswith(last)]
    return [*items, CompletionItem(incomplete, type="file")]
