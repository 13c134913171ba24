"""Which lab and controller a command means, and completion of names in the shell."""

from __future__ import annotations

import functools
import getpass
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from patchlight.console.rendering import say
from patchlight.console.shared import (
    LAB_VARIABLE,
    address_option,
    complete_lab,
    lab_option,
)
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile.reader import (
    builtin_labs,
    find_lab,
    parse_lab,
    read_lab,
)
from patchlight.testbed.linux.processes import own_program
from patchlight.testbed.linux.sockets import UNIX, unix_socket_answers
from patchlight.testbed.wire.lab_api import RUN_ROOT, LabIdentity, api_address

if TYPE_CHECKING:
    from patchlight.client.client import ControllerClient


class NoLabUp(BadInput):
    """No lab was named, and none is up."""


T = TypeVar("T")
Complete = Callable[
    [click.Context, click.Parameter, str], list[CompletionItem]
]

_ANSWERS_WITHIN_S = 2.0
_ASK_AGAIN_S = 0.5

NEWS_WITHIN_S = 20.0
"""The longest that a request waits for something new before it is repeated."""
_SAID = "patchlight.only-lab"


def which_lab(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``lab``: its argument, ``--lab`` or ``PATCHLIGHT_LAB``."""

    @click.argument(
        "named",
        metavar="[LAB]",
        required=False,
        shell_complete=complete_lab,
    )
    @lab_option()
    @functools.wraps(command)
    def with_lab(
        named: str | None,
        lab_name: str | None,
        **options: Any,
    ) -> Any:
        source = click.get_current_context().get_parameter_source("lab_name")
        if source is click.core.ParameterSource.COMMANDLINE and named not in (
            None,
            lab_name,
        ):
            raise BadInput(
                f"which lab, {named} or {lab_name}? expected one of them"
            )
        if named and options.get("address"):
            raise BadInput("LAB and --controller exclude each other: give one")
        if source is click.core.ParameterSource.ENVIRONMENT and options.get(
            "every"
        ):
            lab_name = None
        return command(
            lab=named or lab_name,
            **options,
        )

    return with_lab


def controller_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--lab`` and ``--controller``."""
    return lab_option()(address_option(command))


def labs_up() -> dict[str, Path]:
    """The emulated labs that are up on this machine: their lab files, by name."""
    return {
        path.parent.name: path for path in sorted(RUN_ROOT.glob("*/lab.yaml"))
    }


def only_lab(names: Iterable[str]) -> str:
    """The only lab of these, which standard error names; ``BadInput`` for none or several."""
    found = list(names)
    if len(found) > 1:
        raise BadInput(
            f"several labs are up ({', '.join(found)}): name one with --lab or {LAB_VARIABLE}"
        )
    if not found:
        raise NoLabUp(
            "no lab is up on this machine",
            hint=f"start one with 'sudo {own_program()} emulate up LAB', or name a lab file with "
            "--lab",
        )
    context = click.get_current_context(silent=True)
    if context is not None and not context.meta.setdefault(_SAID, False):
        context.meta[_SAID] = True
        say(f"lab {found[0]}: the only one that is up", err=True)
    return found[0]


def running_lab(lab_name: str | None) -> Lab:
    """The lab of ``running_lab_file``."""
    return read_lab(running_lab_file(lab_name))


def lab_meant(lab_name: str | None, address: str | None) -> Lab:
    """The lab whose names a command uses: that of the named controller, or ``running_lab``."""
    if address is None:
        return running_lab(lab_name)
    with connect(None, address) as client:
        return parse_lab(
            client.lab_file(), f"the lab of the controller at {address}"
        )


def running_lab_file(lab_name: str | None) -> Path:
    """The file of the lab meant: one that is emulated or was deployed here, or else a lab file.

    Without a name the only lab that is up; ``BadInput`` if there are none or several.
    """
    # Where `deploy push` puts a lab's controller: only root sees it.
    deployed = Path("/opt/patchlight").glob("*/configuration/controller-tls")
    up = {
        path.parents[1].name: path.with_name("lab.yaml") for path in deployed
    } | labs_up()
    if lab_name is None:
        lab_name = only_lab(up)
    return up[lab_name] if lab_name in up else find_lab(lab_name)


def offline_lab(lab_name: str) -> str:
    """A lab for a simulation: a file or a built-in lab as it is, else the one up by that name."""
    is_file = lab_name in builtin_labs() or Path(lab_name).exists()
    return lab_name if is_file else str(labs_up().get(lab_name, lab_name))


def connect(
    lab_name: str | None,
    address: str | None,
    uid: int | None = None,
) -> ControllerClient:
    """A client of the lab's controller; with ``uid``, root sends requests for that user."""
    from patchlight.client.client import ControllerClient
    from patchlight.client.connection import logins

    if address is not None:
        return ControllerClient(
            address,
            user=user_name(),
            uid=uid,
            login=logins().get(address),
        )
    file = running_lab_file(lab_name)
    lab = read_lab(file)
    identity = LabIdentity.of(lab, file)
    address = api_address(lab)
    emulated = RUN_ROOT / lab.name / "lab.yaml"
    silent = address.startswith(UNIX) and not unix_socket_answers(
        Path(address.removeprefix(UNIX))
    )
    if silent and file != emulated and emulated.exists():
        raise BadInput(
            f"no controller of {file} runs, but an emulated lab of that name is up",
            hint=f"to use that one: --lab {lab.name}",
        )
    login = logins().get(address)
    return ControllerClient(
        address,
        lab=identity,
        user=user_name(),
        uid=uid,
        login=login,
    )


def with_client(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``client``, of the controller that ``--lab`` and ``--controller`` mean."""

    @controller_options
    @functools.wraps(command)
    def connected(
        lab_name: str | None,
        address: str | None,
        **options: Any,
    ) -> Any:
        with connect(lab_name, address) as client:
            return command(
                client=client,
                **options,
            )

    return connected


def patiently(call: Callable[[], T], *, also_refused: bool = False) -> T:
    """The answer of a call, however long the controller is away (or refuses) meanwhile."""
    from patchlight.client.connection import ControllerError, NoAnswer

    away = False
    waits_for = ControllerError if also_refused else NoAnswer
    while True:
        try:
            answer = call()
        except waits_for as error:
            if not away:
                say(f"waiting for the controller: {error.message}", err=True)
            away = True
            time.sleep(_ASK_AGAIN_S)
        else:
            if away:
                say("the controller answers again", err=True)
            return answer


def user_name() -> str:
    """The user's name, for the history of changes."""
    if os.environ.get("SUDO_USER"):
        return os.environ["SUDO_USER"]
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return f"uid {os.getuid()}"


def completer(
    candidates: Callable[[Lab, click.Context, str], Iterable[str]],
    *,
    several: bool = False,
) -> Complete:
    """Complete names of the lab that a command is about; ``several`` are joined by commas."""

    def complete(
        context: click.Context,
        parameter: click.Parameter,
        incomplete: str,
    ) -> list[CompletionItem]:
        before, comma, last = (
            incomplete.rpartition(",") if several else ("", "", incomplete)
        )
        try:
            lab = running_lab(_lab_named(context))
            names = dict.fromkeys(candidates(lab, context, last))
        except PatchlightError:
            return []  # no lab, no names; an error would land in the user's prompt
        return [
            CompletionItem(before + comma + n)
            for n in names
            if n.startswith(last)
        ]

    return complete


def _lab_named(context: click.Context) -> str | None:
    """The lab on a line that is being written, as LAB or with --lab."""
    given = map(context.params.get, ("lab", "named", "lab_name"))
    return next(filter(None, given), None)


def _jobs(
    lab: Lab,
    context: click.Context,
    incomplete: str,
) -> Iterable[str]:
    from patchlight.client.client import ControllerClient

    address = context.params.get("address") or api_address(lab)
    with ControllerClient(address, _ANSWERS_WITHIN_S) as client:
        return [status.id for status in client.jobs_meant(incomplete)]


complete_host = completer(lambda lab, *_: lab.host_names)
complete_hosts = completer(lambda lab, *_: lab.host_names, several=True)
complete_end = completer(
    lambda lab, *_: [
        *lab.host_names,
        *(end.device for end in lab.fibre_ends),
    ]
)
complete_server = completer(lambda lab, *_: [s.name for s in lab.servers])
complete_job = completer(_jobs)
