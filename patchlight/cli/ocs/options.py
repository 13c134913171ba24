"""Options that the ``patchlight ocs`` commands share, and whom they then talk to."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchlight.console.connection import connect, controller_options, lab_meant, user_name
from patchlight.console.rendering import listing_options
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.labmaps import driven
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.linux.files import user_folder
from patchlight.testbed.wire.lab_api import RUN_ROOT

if TYPE_CHECKING:
    from patchlight.client.client import ControllerClient
    from patchlight.console.direct import Needs


@dataclass(frozen=True)
class Target:
    """Which lab is meant, and whether its devices are reached through a controller."""

    lab_name: str | None
    address: str | None
    direct: bool = False
    state: Path | None = None

    @functools.cached_property
    def lab(self) -> Lab:
        """The lab whose names the command uses."""
        return lab_meant(self.lab_name, self.address)

    @property
    def state_dir(self) -> Path:
        """Where the journal is that ``--direct`` uses."""
        return self.state or _state_of(self.lab)

    @contextlib.contextmanager
    def client(
        self, needs: Collection[str] | Needs | None = None, *, talks: bool = True
    ) -> Iterator[ControllerClient]:
        """A client of the controller, or straight of the devices.

        ``needs``: the optical switches that the command is about, or how to find them in the
        journal; all of the lab's if none are named. Without ``talks`` it only uses the journal.
        """
        if not self.direct:
            with connect(self.lab_name, self.address) as client:
                yield client
            return
        if self.address is not None:
            raise BadInput("--direct and --controller exclude each other")
        from patchlight.console.direct import direct_client

        if needs is not None and not callable(needs):
            names = [driven(self.lab.optical_switch(name)) for name in needs]
            needs = (lambda _: names) if names else None
        with direct_client(self.lab, self.state_dir, user_name(), needs, talks=talks) as client:
            yield client


def _state_of(lab: Lab) -> Path:
    """Where the lab's controller keeps its state, so that journal and locks are the same."""
    if (RUN_ROOT / lab.name / "lab.yaml").exists():
        return RUN_ROOT / lab.name / "controller"
    if os.geteuid() == 0:
        return Path("/var/lib/patchlight") / lab.name
    return user_folder("XDG_STATE_HOME", ".local/state") / "patchlight" / lab.name


@dataclass(frozen=True)
class ChangeOptions:
    """How a change is to be made: rehearsed or not, confirmed how, waited for or not, and why."""

    dry_run: bool
    yes: int
    why: str
    as_json: bool
    detach: bool = False


why_option = click.option(
    "--why", default="", show_default=False, metavar="TEXT", help="The reason, for the history."
)


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--lab``, ``--controller``, ``--direct``, ``--state`` as ``target``, and
    ``--json`` as ``as_json``, and ``--wide``."""

    @controller_options
    @click.option(
        "--state",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Where --direct keeps its journal [default: where the controller does].",
    )
    @click.option("--direct", is_flag=True, help="Talk to the device without a controller.")
    @listing_options
    @functools.wraps(command)
    def with_target(
        lab_name: str | None, address: str | None, direct: bool, state: Path | None, **options: Any
    ) -> Any:
        return command(target=Target(lab_name, address, direct, state), **options)

    return with_target


def change_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that changes circuits ``--dry-run``, ``--yes``, ``--why``, ``--detach``,
    ``--json`` as ``options``, and the options of ``target_options``."""

    @target_options
    @why_option
    @click.option(
        "-y",
        "--yes",
        count=True,
        show_default=False,
        help="Do not ask; given twice, not even before many circuits go.",
    )
    @click.option("--dry-run", is_flag=True, help="Show what would change, change nothing.")
    @click.option(
        "--detach",
        is_flag=True,
        help="Begin the change and do not wait: 'ocs watch ID' follows it.",
    )
    @functools.wraps(command)
    def with_options(
        target: Target,
        dry_run: bool,
        yes: int,
        why: str,
        as_json: bool,
        detach: bool,
        **others: Any,
    ) -> Any:
        if detach and target.direct:
            raise BadInput(
                "--detach and --direct exclude each other: a controller makes the change"
            )
        options = ChangeOptions(dry_run, yes, why, as_json, detach)
        return command(target=target, options=options, **others)

    return with_options
