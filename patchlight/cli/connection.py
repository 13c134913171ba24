"""Which controller a command talks to: the one named, or the one of the lab that is up."""

import getpass
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from patchlight.cli.rendering import say
from patchlight.controller.client import ControllerClient
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab import Lab
from patchlight.testbed.labfile.reader import builtin_labs, load_lab, read_lab
from patchlight.testbed.labfile.schema import HOST_PORT

RUN_ROOT = Path("/run/patchlight")
LAB_VARIABLE = "PATCHLIGHT_LAB"
_SAID = "patchlight.only-lab"


def complete_lab(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Labs that are up, built-in labs, and files."""
    names = dict.fromkeys([*labs_up(), *builtin_labs()])
    items = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return [*items, CompletionItem(incomplete, type="file")]


lab_option = click.option(
    "--lab",
    "lab_name",
    metavar="LAB",
    envvar=LAB_VARIABLE,
    show_envvar=True,
    shell_complete=complete_lab,
    help="The lab, by name or file; needed if several are up.",
)


def controller_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--lab`` and ``--controller``."""
    address = click.option(
        "--controller",
        "address",
        metavar="HOST:PORT",
        callback=_host_port,
        help="The controller's API address.",
    )
    return lab_option(address(command))


def _host_port(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    if value is None or value.startswith("unix:"):
        return value
    try:
        return HOST_PORT.take(value)
    except BadInput as error:
        raise click.BadParameter(error.message, context, parameter) from error


def labs_up() -> dict[str, Path]:
    """The emulated labs that are up on this machine: their lab files, by name."""
    return {path.parent.name: path for path in sorted(RUN_ROOT.glob("*/lab.yaml"))}


def only_lab(names: Iterable[str]) -> str:
    """The only lab of these, and say on standard error that it was picked.

    ``BadInput`` if there are none or several.
    """
    found = list(names)
    if len(found) > 1:
        raise BadInput(
            f"several labs are up ({', '.join(found)}): name one with --lab or {LAB_VARIABLE}"
        )
    if not found:
        raise BadInput(
            "no lab is up on this machine",
            hint="start one with 'sudo patchlight emulate up LAB', or name a lab file with --lab",
        )
    context = click.get_current_context(silent=True)
    if context is not None and not context.meta.setdefault(_SAID, False):
        context.meta[_SAID] = True
        say(f"lab {found[0]}: the only one that is up", err=True)
    return found[0]


def running_lab(lab_name: str | None) -> Lab:
    """The lab meant: an emulated one that is up, by name, or else a lab file.

    Without a name the only lab that is up; ``BadInput`` if there are none or several.
    """
    up = labs_up()
    if lab_name is None:
        lab_name = only_lab(up)
    return read_lab(up[lab_name]) if lab_name in up else load_lab(lab_name)


def connect(lab_name: str | None, address: str | None) -> ControllerClient:
    """A client of the controller meant."""
    return ControllerClient(address or running_lab(lab_name).controller_api, user=user_name())


def user_name() -> str:
    """Who works here: the history of changes gets this name."""
    if os.environ.get("SUDO_USER"):
        return os.environ["SUDO_USER"]
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return f"uid {os.getuid()}"
