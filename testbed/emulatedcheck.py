"""What can only be wrong under ``emulated:`` beside the rest of its circuit switch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from testbed.mistakes import At, Mistakes
from testbed.portmap import parse_cross_connects
from testbed.yamlkinds import Fields

WITHOUT_USERS = ("polatis-scpi", "openflow", "dry-run")
"""Drivers of protocols in which nobody logs in."""
MAKE_ROOM = ("calient-tl1", "calient-rest")
"""Drivers of devices that may take busy ports from their circuits."""


def check_emulated(switch: Fields, mistakes: Mistakes) -> None:
    """Note faults of ports that are not there, and what the driver's device cannot do."""
    if "emulated" not in switch:
        return
    emulated: Fields = switch["emulated"].value
    driver = switch["driver"].value if "driver" in switch else None
    if "users" in emulated:
        _check_users(driver, emulated["users"], mistakes)
    if driver is not None and driver not in MAKE_ROOM and "conflict_time" in emulated:
        message = f"an emulated {driver} has no conflict_time: expected it with a Calient's driver"
        mistakes.at(emulated["conflict_time"], message)
    if "ports" in switch and "faults" in emulated:
        count = switch["ports"].value
        for fault in emulated["faults"].value:
            for port, where in _ports(fault.value):
                if port > count:
                    message = f"port {port} is outside the switch: expected 1 to {count}"
                    mistakes.at(where, message)


def _check_users(driver: str | None, users: At[Any], mistakes: Mistakes) -> None:
    if driver in WITHOUT_USERS and users.value:
        mistakes.at(users, f"nobody logs in to a {driver}: expected no users")
    first: dict[str, At[Any]] = {}
    for user in (item.value for item in users.value):
        if "name" not in user:
            continue
        before = first.setdefault(user["name"].value, user["name"])
        if before is not user["name"]:
            message = f"user {before.value} is listed twice, first on line {before.line}"
            mistakes.at(user["name"], f"{message}: expected each once")


def _ports(fault: Fields) -> Iterator[tuple[int, At[Any]]]:
    for key in ("refuse_ports", "fail_ports"):
        if key in fault:
            yield from ((item.value, item) for item in fault[key].value)
    if "drift_db" in fault:
        yield from ((int(port), item) for port, item in fault["drift_db"].value.items())
    if "lose" in fault:
        one = parse_cross_connects(fault["lose"].value)[0]
        yield from ((port, fault["lose"]) for port in (one.inp, one.out))
