"""Patchlight on the servers of a lab, over SSH."""

from patchlight.console.shared import DAILY, OPERATE, Command

_HERE = "patchlight.deploy.commands"
COMMANDS = {
    "deploy": Command(
        f"{_HERE}.deploy", "Deploy Patchlight to a lab's servers.", OPERATE
    ),
    "doctor": Command(
        f"{_HERE}.doctor", "Check this machine's prerequisites.", DAILY
    ),
}
