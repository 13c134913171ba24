"""``patchlight ocs`` commands that look: maps, light, history, alarms, events."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Any

import click

from testbed.cli.ocs_names import complete_switch, plugged_in, port_anywhere
from testbed.cli.ocs_options import Target, json_option, target_options
from testbed.cli.ocs_output import change_lines
from testbed.cli.rendering import console, new_table, print_json
from testbed.errors import PatchlightError
from testbed.lab import Lab

Answer = dict[str, Any]

_POLL_S = 0.5
_CIRCUIT_EVENTS = {
    "circuits", "alarm", "drift", "resumed", "locked", "unlocked", "stopped", "stop-cleared",
}  # fmt: skip

_switches = click.argument("switches", nargs=-1, metavar="[OCS…]", shell_complete=complete_switch)


def when(at: float) -> str:
    """A Unix time as local date and time."""
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


def _named(lab: Lab, names: tuple[str, ...]) -> list[str]:
    return [lab.circuit_switch(name).name for name in names] or [
        switch.name for switch in lab.circuit_switches
    ]


@click.command("list")
@target_options
@json_option
def list_switches(target: Target, as_json: bool) -> None:
    """The lab's circuit switches, as the lab file has them."""
    rows = [
        {
            "name": s.name, "driver": s.driver, "address": s.address, "ports": s.ports,
            "switching_time_s": s.switching_time_s, "insertion_loss_db": s.insertion_loss_db,
        }
        for s in target.lab.circuit_switches
    ]  # fmt: skip
    if as_json:
        print_json(rows)
        return
    table = new_table("OCS", "driver", "address", "ports", "switching time", "insertion loss")
    for s in target.lab.circuit_switches:
        table.add_row(
            s.name, s.driver, s.address, str(s.ports), f"{s.switching_time_s * 1e3:g} ms",
            f"{s.insertion_loss_db:g} dB",
        )  # fmt: skip
    console().print(table)


@click.command()
@_switches
@click.option("--power", "with_power", is_flag=True, help="Also measure the light.")
@target_options
@json_option
def show(switches: tuple[str, ...], with_power: bool, target: Target, as_json: bool) -> None:
    """The present cross-connects, and which devices they join."""
    names = _named(target.lab, switches)
    if with_power:
        _show_light(target, names, as_json=as_json)
        return
    with target.client() as client:
        circuits, locks = client.circuits(), client.locks()
    if as_json:
        print_json({name: circuits[name] for name in names})
        return
    table = new_table("OCS", "cross-connect", "from", "to", "locked")
    for name in names:
        held = {lock["port"]: lock for lock in locks if lock["ocs"] == name}
        for text in circuits[name]["map"]:
            inp, out = (int(port) for port in text.split(">"))
            locked = ", ".join(
                f"{p} {held[p]['kind']} by {held[p]['by']}" for p in (inp, out) if p in held
            )
            here = plugged_in(target.lab, name, inp), plugged_in(target.lab, name, out)
            table.add_row(name, text, *here, locked)
    console().print(table)


@click.command()
@click.argument("places", nargs=-1, metavar="[OCS|PORT…]", shell_complete=complete_switch)
@target_options
@json_option
def power(places: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Measured light of the circuits of an OCS, or of those of some ports."""
    whole = {switch.name for switch in target.lab.circuit_switches}
    ports = {port_anywhere(target.lab, text) for text in places if text not in whole}
    names = [p for p in places if p in whole] + [ocs for ocs, _ in sorted(ports)]
    _show_light(target, list(dict.fromkeys(names)) or _named(target.lab, ()), ports,
                as_json=as_json)  # fmt: skip


def _show_light(
    target: Target,
    names: list[str],
    ports: set[tuple[str, int]] | None = None,
    *,
    as_json: bool,
) -> dict[str, Answer]:
    asked = {ocs for ocs, _ in ports or ()}
    with target.client() as client:
        found = {name: client.light(name) for name in names}
    for name, answer in found.items():
        if name in asked:
            answer["circuits"] = [
                row for row in answer["circuits"]
                if any((name, int(port)) in (ports or ()) for port in
                       row["cross_connect"].split(">"))
            ]  # fmt: skip
    if as_json:
        print_json(found)
        return found
    table = new_table("OCS", "cross-connect", "in", "out", "expected", "verdict", "light from")
    for name, answer in found.items():
        for row in answer["circuits"]:
            table.add_row(
                name, row["cross_connect"], _dbm(row["in_dbm"]), _dbm(row["out_dbm"]),
                _dbm(row["expected_dbm"]), row["words"] or row["verdict"], row["source"] or "",
            )  # fmt: skip
    console().print(table)
    for name, answer in found.items():
        for port, state in answer["ports"].items():
            click.echo(f"{name} {port} is {state['condition']} ({state['words']})")
    return found


def _dbm(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} dBm"


@click.command()
@_switches
@target_options
@json_option
def verify(switches: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Check each circuit: as committed, port states, light against the loss budget.

    Ends with 1 if anything is wrong. What cannot be measured is 'unverified', not wrong.
    """
    names = _named(target.lab, switches)
    with target.client() as client:
        drift = client.drift()
    found = _show_light(target, names, as_json=as_json)
    wrong = [
        f"{name}: {row['words']}"
        for name, answer in found.items()
        for row in answer["circuits"]
        if row["verdict"] == "failed"
    ]
    for name in names:
        differs = drift.get(name, {})
        wrong += [f"{name}: {text} is missing" for text in differs.get("missing", ())]
        wrong += [f"{name}: {text} was not made here" for text in differs.get("unknown", ())]
        broken = {p for p, s in found[name]["ports"].items() if s["condition"] == "failed"}
        wrong += [f"{name}: {port} has failed" for port in sorted(broken)]
    if wrong:
        raise PatchlightError("\n".join(wrong))
    if not as_json:
        rows = [row for answer in found.values() for row in answer["circuits"]]
        sure = sum(row["verdict"] == "ok" for row in rows)
        click.echo(f"{sure} circuits verified, {len(rows) - sure} unverified, none failed")


@click.command()
@click.argument("switch", metavar="[OCS]", required=False, shell_complete=complete_switch)
@click.option("--last", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--id", "number", type=int, metavar="ID", help="All of one change.")
@target_options
@json_option
def history(
    switch: str | None, last: int, number: int | None, target: Target, as_json: bool
) -> None:
    """Who changed what, when, from where and why, and what became of it."""
    with target.client() as client:
        if number is not None:
            rows = [client.reconfiguration(number)]
        else:
            # Few of the changes may be of this switch, so all are looked at.
            rows = client.reconfigurations(None if switch else last)
    if switch is not None:
        name = target.lab.circuit_switch(switch).name
        rows = [row for row in rows if name in row["changes"]][-last:]
    if as_json:
        print_json(rows)
        return
    if number is not None:
        for line in change_lines(rows[0]["changes"]):
            click.echo(line)
    table = new_table("id", "when", "who", "from", "what", "came to", "why")
    for row in rows:
        what = ", ".join(
            f"{ocs} −{len(c['breaks'])} +{len(c['makes'])}" for ocs, c in row["changes"].items()
        )
        came_to = row["state"] if row["state"] == "committed" else (
            f"{row['state']}: {row['message']}"
        )  # fmt: skip
        table.add_row(
            str(row["id"]), when(row["started_at"]), row.get("by", ""), row.get("origin", ""),
            what or "nothing", came_to, row["why"],
        )  # fmt: skip
    console().print(table)


@click.command()
@_switches
@target_options
@json_option
def alarms(switches: tuple[str, ...], target: Target, as_json: bool) -> None:
    """What the devices reported by themselves since they are connected, notices included."""
    names = _named(target.lab, switches)
    with target.client() as client:
        rows = client.alarms(names)
    if as_json:
        print_json(rows)
        return
    table = new_table("when", "OCS", "severity", "about", "words")
    for row in rows:
        table.add_row(when(row["at"]), row["ocs"], row["severity"], row["subject"], row["words"])
    console().print(table)


@click.command()
@click.option("--since", type=int, metavar="N", help="Begin after event N [default: now].")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after N events.")
@click.option("--all", "everything", is_flag=True, help="Also what is not about circuits.")
@target_options
@json_option
def watch(
    since: int | None, count: int | None, everything: bool, target: Target, as_json: bool
) -> None:
    """Follow what happens: changes, alarms, drift, locks. Ends with Ctrl-C."""
    if target.direct:
        raise PatchlightError("there is nothing to follow with --direct: ask for 'alarms'")
    with target.client() as client:
        seen = client.last_event() if since is None else since
        left = count
        while True:
            for event in client.events(seen):
                seen = event["number"]
                if not everything and event["kind"] not in _CIRCUIT_EVENTS:
                    continue
                text = json.dumps(event) if as_json else _event_line(event)
                click.echo(text)
                left = None if left is None else left - 1
                if left == 0:
                    return
            time.sleep(_POLL_S)


def _event_line(event: Answer) -> str:
    rest = {k: v for k, v in event.items() if k not in ("number", "at", "kind") and v}
    changes = rest.pop("changes", {})
    words = ", ".join(
        f"{key} {', '.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in rest.items()
    )
    lines = [f"{when(event['at'])}  {event['kind']}  {words}"]
    return "\n".join(lines + [f"    {line}" for line in change_lines(changes)])


COMMANDS = (list_switches, show, power, verify, history, alarms, watch)
