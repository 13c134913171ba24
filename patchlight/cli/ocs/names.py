"""Ports of optical switches, and channels there, by number or by what is plugged in."""

from collections.abc import Iterable, Iterator

import click

from patchlight.console.connection import completer
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.labmaps import Place, check_place, parse_map
from patchlight.testbed.lab.model import Endpoint, Lab, OpticalSwitch
from patchlight.testbed.lab.spectrum import Channel


def place_number(lab: Lab, ocs: str, text: str) -> int | str:
    """A port of this switch, or a channel there, as the controller takes it."""
    port, at, _ = text.partition("@")
    port_number(lab, ocs, port)  # says so if it is one of another
    _, place = place_anywhere(lab, text, lab.optical_switch(ocs))
    return str(place) if at else place.port


def port_number(lab: Lab, ocs: str, text: str) -> int:
    """A port of this switch: ``17``, ``ocs1.17``, or the device port that is plugged into it."""
    name, number = port_anywhere(lab, text, lab.optical_switch(ocs))
    if name != ocs:
        raise BadInput(
            f"{text} is not plugged into {ocs}: expected a port number or the name of a port "
            "that a fibre joins to it"
        )
    return number


def place_anywhere(lab: Lab, text: str, default: OpticalSwitch | None = None) -> tuple[str, Place]:
    """Which port of which switch a text means, with ``@193.100`` which channel there."""
    port, at, channel = text.partition("@")
    name, number = port_anywhere(lab, port, default)
    place = Place(number, Channel.parse(channel) if at else None)
    check_place(lab.optical_switch(name), place)
    return name, place


def port_anywhere(lab: Lab, text: str, default: OpticalSwitch | None = None) -> tuple[str, int]:
    """Which port of which switch a text means; a bare number is one of ``default``."""
    if text.isascii() and text.isdigit():
        if default is None:
            default = _only(lab, text)
        return default.name, _within(default, int(text))
    endpoint = lab.host_names[text].endpoint if text in lab.host_names else Endpoint.parse(text)
    switches = {switch.name: switch for switch in lab.optical_switches}
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
    """The ports that these texts mean, by switch."""
    ports: dict[str, list[int]] = {}
    for text in texts:
        name, number = port_anywhere(lab, text)
        ports.setdefault(name, []).append(number)
    return ports


def places_by_switch(lab: Lab, texts: Iterable[str]) -> dict[str, list[int | str]]:
    """The ports, and channels there, that these texts mean, by switch, as the controller has it."""
    places: dict[str, list[int | str]] = {}
    for text in texts:
        name, place = place_anywhere(lab, text)
        places.setdefault(name, []).append(str(place) if place.channel else place.port)
    return places


def cross_connect_text(lab: Lab, ocs: str, text: str, *, one_way: bool = False) -> str:
    """``3:17``, ``3-17``, ``3>17`` or the same with names, as the controller takes it.

    ``:`` and ``-`` mean both ways unless ``one_way``, ``>`` means one way. Names may hold a
    ``-`` themselves, so between names only ``:`` and ``>`` are taken. Of a wavelength switch a
    channel follows: ``3:17@193.100``, ``3:17@193.100-2dB``.
    """
    pair, at, light = text.partition("@")
    for sign in ":>":
        left, joint, right = pair.partition(sign)
        if joint:
            break
    else:
        left, joint, right = pair.partition("-")
        if not (joint and left.strip().isdigit() and right.strip().isdigit()):
            raise BadInput(
                f"{text!r} is not a pair: expected A:B, like 3:17 or server1.nic0:tor1.1"
            )
    a, b = port_number(lab, ocs, left.strip()), port_number(lab, ocs, right.strip())
    way = ">" if one_way or joint == ">" else "-"
    if a == b and not (at and way == ">"):
        raise BadInput(
            f"{text!r} sends light back where it came from: expected two different ports"
        )
    written = f"{a}{way}{b}{at}{light}"
    parse_map(lab.optical_switch(ocs), [written])  # says so if a channel lacks, or is too much
    return written


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


def driven_switches(lab: Lab) -> list[OpticalSwitch]:
    """The switches of the lab that can be asked, circuit switches first."""
    return [switch for switch in lab.optical_switches if switch.driver]


def _only(lab: Lab, text: str) -> OpticalSwitch:
    switches = driven_switches(lab)
    if len(switches) != 1:
        names = ", ".join(switch.name for switch in switches) or "none"
        raise BadInput(f"port {text} of which OCS? lab {lab.name} has {names}: say OCS.{text}")
    return switches[0]


def _within(switch: OpticalSwitch, number: int) -> int:
    if not 1 <= number <= switch.ports:
        raise BadInput(f"{switch.name} has ports 1–{switch.ports}, not {number}")
    return number


# -- completion in the shell -------------------------------------------------------------------


def _port_names(lab: Lab, ocs: str | None) -> Iterator[str]:
    """What is plugged into this switch (or any), by its own name."""
    switches = {ocs} if ocs else {switch.name for switch in driven_switches(lab)}
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


complete_switch = completer(lambda lab, *_: (switch.name for switch in driven_switches(lab)))
complete_pair = completer(_pairs)
complete_port = completer(lambda lab, context, _: _port_names(lab, context.params.get("name")))
complete_any_port = completer(
    lambda lab, *_: (
        name
        for end, (other, _fibre) in lab.fibre_ends.items()
        if other.device in {switch.name for switch in driven_switches(lab)}
        for name in (str(end), str(other))
    )
)
