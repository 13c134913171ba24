"""How each vendor's SCPI differs, as data: command templates and patterns.

See ``patchlight.controller.circuits.dialects`` for how a user corrects one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from patchlight.controller.circuits.dialects import Dialect, Pattern, Template


@dataclass(frozen=True)
class ScpiDialect(Dialect):
    """What a session takes.

    ``confirm`` is put behind a command that changes something, and the device answers it
    with ``confirmed`` when it is done. ``errors`` asks for all errors and is sent after
    every command, with ``then`` between (``;`` would put both in one message): a device
    answers a command in error with nothing at all. Set ``login`` where a unit wants one.
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset({"user", "password"})

    login: Template = ""
    keep_alive: Template = "*OPC?"
    confirm: Template = ";*OPC?"
    confirmed: Pattern = r"\+?1"
    errors: Template = ":syst:err:all?"
    then: str = "\n"
    error_entry: Pattern = r'\s*(?P<code>[+-]?\d+)\s*,\s*"(?P<words>[^"]*(?:""[^"]*)*)"(?!")\s*'


@dataclass(frozen=True)
class PolatisScpiDialect(ScpiDialect):
    """What a Polatis switch takes.

    ``{ins}``, ``{outs}`` and ``{ports}`` are lists of the device's port numbers. Patterns
    match a whole answer and name their groups as below. ``list_limit`` is how many pairs one
    command takes, ``ask_limit`` how many ports one question. ``any_to_any`` is searched in the
    model: such a switch has no inputs and outputs. At or below ``dark_dbm`` a port is dark.
    """

    FIELDS: ClassVar[frozenset[str]] = ScpiDialect.FIELDS | {"ins", "outs", "ports"}

    identity: Template = "*IDN?"
    size: Template = ":oxc:swit:size?"
    connect: Template = ":oxc:swit:conn:add (@{ins}),(@{outs})"
    disconnect: Template = ":oxc:swit:conn:sub (@{ins}),(@{outs})"
    read_map: Template = ":oxc:swit:conn:stat?"
    port_states: Template = ":oxc:swit:port:stat? (@{ports})"
    power: Template = ":pmon:pow? (@{ports})"
    list_limit: int = 512
    ask_limit: int = 256
    vendor: str = "Polatis"
    identity_answer: Pattern = (
        r"(?P<vendor>[^,]*),(?P<model>[^,]*),(?P<serial>[^,]*),(?P<software>.*)"
    )
    any_to_any: Pattern = r"\b\d+xCC\b"
    size_answer: Pattern = r"(?P<ins>\d{1,9})\s*,\s*(?P<outs>\d{1,9})"
    map_answer: Pattern = r"\(@(?P<ins>[^()]*)\)\s*,\s*\(@(?P<outs>[^()]*)\)"
    states_answer: Pattern = r"\((?P<states>[^()]*)\)"
    port_enabled: Pattern = r"E"
    port_disabled: Pattern = r"D"
    power_answer: Pattern = r"\((?P<powers>[^()]*)\)"
    dark_dbm: float = -50.0


POLATIS = PolatisScpiDialect()
