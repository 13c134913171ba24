"""Which controller a command talks to: the one named, or the one of the lab that is up."""

import getpass
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from patchlight.controller.client import ControllerClient
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab import Lab
from patchlight.testbed.labfile.reader import load_lab, read_lab

RUN_ROOT = Path("/run/patchlight")
lab_option = click.option("--lab", "lab_name", metavar="LAB", help="The lab, if several are up.")


def controller_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--lab`` and ``--controller``."""
    address = click.option(
        "--controller", "address", metavar="HOST:PORT", help="The controller's API address."
    )
    return lab_option(address(command))


def running_lab(lab_name: str | None) -> Lab:
    """The lab meant: an emulated one that is up, by name, or else a lab file.

    Without a name the only lab that is up; ``BadInput`` if there are none or several.
    """
    up = labs_up()
    if lab_name in up:
        return read_lab(up[lab_name])
    if lab_name is not None:
        return load_lab(lab_name)
    if len(up) == 1:
        return read_lab(next(iter(up.values())))
    if up:
        raise BadInput(f"several labs are up ({', '.join(up)}): name one with --lab")
    raise BadInput(
        "no lab is up on this machine",
        hint="start one with 'sudo patchlight emulate up LAB', or name a lab file with --lab",
    )


def labs_up() -> dict[str, Path]:
    """The runtime lab file of each emulated lab that is up, by the lab's name."""
    return {p.parent.name: p for p in sorted(RUN_ROOT.glob("*/lab.yaml"))}


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
