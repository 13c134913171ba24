"""Ports of circuit switches by number or by what is plugged in."""

from collections.abc import Iterable, Iterator

import click

from patchlight.cli.completion import completer
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab import CircuitSwitch, Endpoint, Lab


def port_number(lab: Lab, ocs: str, text: str) -> int:
    """A port of this OCS: ``17``, ``ocs1.17``, or the device port that is plugged into it."""
    name, number = port_anywhere(lab, text, lab.circuit_switch(ocs))
    if name != ocs:
        raise BadInput(
            f"{text} is not plugged into {ocs}: expected a port number or the name of a port "
            "that a fibre joins to it"
        )
    return number


def port_anywhere(lab: Lab, text: str, default: CircuitSwitch | None = None) -> tuple[str, int]:
    """Which port of which OCS a text means; a bare number is one of ``default``."""
    if text.isascii() and text.isdigit():
        if default is None:
            default = _only(lab, text)
        return default.name, _within(default, int(text))
    endpoint = lab.host_names[text].endpoint if text in lab.host_names else Endpoint.parse(text)
    switches = {c.name: c for c in lab.circuit_switches}
    if endpoint.device in switches:
        if not endpoint.port.isdigit():
            raise BadInput(f"{text} is not a port: expected {endpoint.device}.N")
        return endpoint.device, _within(switches[endpoint.device], int(endpoint.port))
    end = lab.fibre_ends.get(endpoint)
    if end is None or end[0].device not in switches:
        lab.device(endpoint.device)  # says so if there is no such device
        raise BadInput(f"{text} is not plugged into an OCS: no fibre joins it to one")
    return end[0].device, int(end[0].port)


def ports_by_switch(lab: Lab, texts: Iterable[str]) -> dict[str, list[int]]:
    """The ports that these texts mean, by OCS."""
    ports: dict[str, list[int]] = {}
    for text in texts:
        name, number = port_anywhere(lab, text)
        ports.setdefault(name, []).append(number)
    return ports


def cross_connect_text(lab: Lab, ocs: str, text: str, *, one_way: bool = False) -> str:
    """``3:17``, ``3-17``, ``3>17`` or the same with names, as the controller takes it.

    ``:`` and ``-`` mean both ways unless ``one_way``, ``>`` means one way. Names may hold a
    ``-`` themselves, so between names only ``:`` and ``>`` are taken.
    """
    for sign in ":>":
        left, joint, right = text.partition(sign)
        if joint:
            break
    else:
        left, joint, right = text.partition("-")
        if not (joint and left.strip().isdigit() and right.strip().isdigit()):
            raise BadInput(
                f"{text!r} is not a pair: expected A:B, like 3:17 or server1.nic0:tor1.1"
            )
    a, b = port_number(lab, ocs, left.strip()), port_number(lab, ocs, right.strip())
    if a == b:
        raise BadInput(
            f"{text!r} sends light back where it came from: expected two different ports"
        )
    return f"{a}{'>' if one_way or joint == '>' else '-'}{b}"


def named_pair(text: str) -> tuple[str, str]:
    """``A:B`` as two names; ``BadInput`` for all else."""
    left, colon, right = (part.strip() for part in text.partition(":"))
    if not (left and colon and right) or ":" in right:
        raise BadInput(f"{text!r} is not a pair: expected A:B, like server1.nic0:tor1")
    return left, right


def plugged_in(lab: Lab, ocs: str, port: int) -> str:
    """What is plugged into a port of the OCS, or nothing."""
    end = lab.fibre_ends.get(Endpoint(ocs, str(port)))
    return str(end[0]) if end else ""


def _only(lab: Lab, text: str) -> CircuitSwitch:
    if len(lab.circuit_switches) != 1:
        names = ", ".join(c.name for c in lab.circuit_switches) or "none"
        raise BadInput(f"port {text} of which OCS? lab {lab.name} has {names}: say OCS.{text}")
    return lab.circuit_switches[0]


def _within(switch: CircuitSwitch, number: int) -> int:
    if not 1 <= number <= switch.ports:
        raise BadInput(f"{switch.name} has ports 1–{switch.ports}, not {number}")
    return number


# -- completion in the shell -------------------------------------------------------------------


def _port_names(lab: Lab, ocs: str | None) -> Iterator[str]:
    """What is plugged into this OCS (or any), by its own name."""
    switches = {ocs} if ocs else {c.name for c in lab.circuit_switches}
    for end, (other, _) in lab.fibre_ends.items():
        if other.device in switches:
            yield str(end)


def _pairs(lab: Lab, context: click.Context, incomplete: str) -> Iterator[str]:
    names = list(_port_names(lab, context.params.get("name")))
    left, colon, _ = incomplete.partition(":")
    if colon:
        yield from (f"{left}:{name}" for name in names if name != left)
    else:
        yield from (f"{name}:" for name in names)


complete_switch = completer(lambda lab, *_: (c.name for c in lab.circuit_switches))
complete_pair = completer(_pairs)
complete_port = completer(lambda lab, context, _: _port_names(lab, context.params.get("name")))
complete_any_port = completer(
    lambda lab, *_: (
        name
        for end, (other, _fibre) in lab.fibre_ends.items()
        if other.device in {c.name for c in lab.circuit_switches}
        for name in (str(end), str(other))
    )
)
