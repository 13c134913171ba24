"""``patchlight ocs`` commands that look: switches, maps, optical power, history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from patchlight.cli.ocs import Target, say_changes, say_unreachable, target_options
from patchlight.cli.ocs.names import (
    complete_any_port,
    complete_switch,
    driven_switches,
    place_anywhere,
    plugged_in,
)
from patchlight.console import rendering as out
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.spectrum import Channel
from patchlight.testbed.lab.wiring import Place, driven, parse_map

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.circuits import (
        AlarmShape,
        ChangeAnswer,
        LightAnswer,
        Lock,
        OcsMap,
    )

_SEVERITIES: dict[str, out.Meaning] = {"critical": "bad", "major": "bad", "notice": "quiet"}
_VERDICTS: dict[str, out.Meaning] = {
    "ok": "good",
    "degraded": "caution",
    "unverified": "quiet",
    "failed": "bad",
}

switches_argument = click.argument(
    "switches", nargs=-1, metavar="[OCS…]", shell_complete=complete_switch
)
Ports = Collection[tuple[str, Place]]


def named_switches(lab: Lab, names: Collection[str]) -> list[str]:
    """These optical switches, or else all that have a driver.

    ``BadInput`` if one does not exist, or has no driver.
    """
    return [driven(lab.optical_switch(name)) for name in names] or [
        switch.name for switch in driven_switches(lab)
    ]


@click.command()
@click.argument("places", nargs=-1, metavar="[OCS|PORT…]", shell_complete=complete_any_port)
@click.option("--power", is_flag=True, help="Measure the optical power of the circuits instead.")
@click.option("--alarms", is_flag=True, help="Show what the devices have reported instead.")
@target_options
def show(places: tuple[str, ...], power: bool, alarms: bool, target: Target, as_json: bool) -> None:
    """Show optical switches and their circuits.

    With ports, only the circuits of these. Alarms are those since the controller connected to the
    device, notices included; with --direct those that stand now.
    """
    if power and alarms:
        raise BadInput("--power and --alarms exclude each other: give one")
    whole = {switch.name for switch in target.lab.optical_switches}
    for text in places:
        if not ("." in text or text.isdecimal() or text in target.lab.host_names):
            target.lab.optical_switch(text)  # says so if there is none
    given = [place_anywhere(target.lab, text) for text in places if text not in whole]
    wanted = [p for p in places if p in whole] + sorted(ocs for ocs, _ in given)
    names = named_switches(target.lab, list(dict.fromkeys(wanted)))
    # Of a switch that is named itself, all ports.
    ports = [(ocs, place) for ocs, place in given if ocs not in places]
    with target.client(names) as client:
        if alarms:
            _print_alarms(client.alarms(names), as_json=as_json)
            return
        if power:
            powers = {name: client.light(name) for name in names}
            for name, answer in powers.items():
                kept = _kept(
                    target.lab, name, [r["cross_connect"] for r in answer["circuits"]], ports
                )
                answer["circuits"] = [r for r in answer["circuits"] if r["cross_connect"] in kept]
            _print_power(powers, as_json=as_json)
            say_unreachable(powers)
            return
        answers, locks = client.circuits(), client.locks()
        states = {row["name"]: row for row in client.circuit_switches()}
    circuits: dict[str, Any] = {}
    for name in names:
        texts = answers[name]["map"]
        shown = None if texts is None else _kept(target.lab, name, texts, ports)
        circuits[name] = {**answers[name], "map": shown, **states[name]}
    tables = out.Screen(_switches_table(circuits), _circuits_table(target.lab, circuits, locks))
    out.print_answer(circuits, tables.print, as_json=as_json)
    say_unreachable(circuits)


def _kept(lab: Lab, ocs: str, texts: Collection[str], ports: Ports) -> list[str]:
    """Of these cross-connects those at the ports of this switch; all if none of it is named."""
    places = [place for name, place in ports if name == ocs]
    switch = lab.optical_switch(ocs)
    return [
        text
        for text in texts
        if not places
        or any(place.holds(entry) for place in places for entry in parse_map(switch, [text]))
    ]


def _switches_table(rows: Mapping[str, Any]) -> out.Table:
    table = out.Table(
        out.Column("OCS", whole=True),
        out.Column("driver", whole=True),
        *out.numbers("ports"),
        "answers",
        "alarms",
        "device",
        out.Column("address", wide=True),
        out.Column("switching time", wide=True, right=True),
    )
    for name, row in rows.items():
        words, yes = row["words"], row["reachable"]
        is_a = row["identity"] or {}
        device = " ".join(filter(None, (is_a.get(k) for k in ("vendor", "model", "software"))))
        # Nothing for none: not every device has such a list.
        alarms = f"{row['standing_alarms']} standing" if row.get("standing_alarms") else ""
        table.add_row(
            *(name, row["driver"], str(row["ports"])),
            out.Coloured("yes", "good") if yes else out.Coloured(f"no: {words}", "bad"),
            out.Coloured(alarms, "caution"),
            device or (words if yes else ""),
            row["address"],
            f"{row['switching_time_s'] * 1e3:g} ms",
        )
    return table


def _print_alarms(rows: Sequence[AlarmShape], *, as_json: bool) -> None:
    table = out.Table(
        *("when", "OCS", "severity", "standing", "about", "message"), empty="no alarms"
    )
    for row in rows:
        severity = out.Coloured(row["severity"], _SEVERITIES.get(row["severity"], "caution"))
        cells = (row["ocs"], severity, "yes" if row["standing"] else "")
        table.add_row(out.when(row["at"]), *cells, row["subject"], row["words"])
    out.print_answer(rows, table, as_json=as_json)


def _circuits_table(lab: Lab, circuits: dict[str, OcsMap], locks: list[Lock]) -> out.Table:
    table = out.Table("OCS", out.Column("cross-connect", whole=True), "from", "to", "locked")
    for name, answer in circuits.items():
        held = {
            Place(lock["port"], Channel.parse(lock["channel"]) if lock["channel"] else None): lock
            for lock in locks
            if lock["ocs"] == name
        }
        for entry in parse_map(lab.optical_switch(name), answer["map"] or ()):
            locked = ", ".join(
                f"{place} {lock['kind']} by {lock['by']}"
                for place, lock in held.items()
                if place.holds(entry)
            )
            ends = (plugged_in(lab, name, port) for port in (entry.inp, entry.out))
            table.add_row(name, str(entry), *ends, out.Coloured(locked, "caution"))
    return table


def _print_power(answers: dict[str, LightAnswer], *, as_json: bool) -> None:
    if as_json:
        out.print_json(answers)
        return
    powers = out.numbers("in", "out", "budget", "baseline")
    crossed = out.Column("cross-connect", whole=True)
    table = out.Table("OCS", crossed, *powers, "verdict", "source", title="Optical power in dBm")
    for name, answer in answers.items():
        for row in answer["circuits"]:
            measured = (row["in_dbm"], row["out_dbm"], row["expected_dbm"], row["baseline_dbm"])
            words, meaning = row["words"] or row["verdict"], _VERDICTS.get(row["verdict"], "bad")
            table.add_row(
                *(name, row["cross_connect"]),
                *("" if dbm is None else f"{dbm:.1f}" for dbm in measured),
                *(out.Coloured(words, meaning), row["source"] or ""),
            )
    table.print()
    for name, answer in answers.items():
        for port, state in answer["ports"].items():
            out.say(f"{name} {port} is {state['condition']} ({state['words']})")


@click.command()
@switches_argument
@click.option("--accept", is_flag=True, help="Make the present power the baseline.")
@target_options
def verify(switches: tuple[str, ...], accept: bool, target: Target, as_json: bool) -> None:
    """Check circuits against the last change, and their optical power.

    The power is compared with the loss budget and with a baseline: what the same circuit had when
    it was made before. The exit code is 1 if a circuit, a port or a device has failed. A circuit
    that cannot be measured is 'unverified'; one within the budget that lost power since its
    baseline is 'degraded'. Neither is a failure.
    """
    names = named_switches(target.lab, switches)
    with target.client(names) as client:
        drift = client.drift()
        answers = {name: client.light(name) for name in names}
        if accept:
            client.accept_light(names)
            answers = {name: client.light(name) for name in names}
    _print_power(answers, as_json=as_json)
    wrong = [
        f"{name}: {row['words']}"
        for name, answer in answers.items()
        for row in answer["circuits"]
        if row["verdict"] == "failed"
    ]
    for name in names:
        if differs := drift.get(name):
            wrong += [f"{name}: {text} is missing" for text in differs["missing"]]
            wrong += [f"{name}: {text} was not made here" for text in differs["unknown"]]
        broken = {p for p, s in answers[name]["ports"].items() if s["condition"] == "failed"}
        wrong += [f"{name}: {port} has failed" for port in sorted(broken)]
        if answers[name]["unreachable"]:
            wrong.append(f"{name} does not answer: {answers[name]['unreachable']}")
    if wrong:
        raise PatchlightError("\n".join(wrong))
    if not as_json:
        kinds = Counter(row["verdict"] for answer in answers.values() for row in answer["circuits"])
        degraded = f", {kinds['degraded']} degraded" if kinds["degraded"] else ""
        what = "circuit" if kinds["ok"] == 1 else "circuits"
        out.say(
            f"{kinds['ok']} {what} verified{degraded}, {kinds['unverified']} unverified, "
            "none failed"
        )


@click.command()
@click.argument("what", metavar="[OCS|ID]", required=False, shell_complete=complete_switch)
@click.option("--last", type=click.IntRange(min=1), default=20, help="How many changes.")
@target_options
def history(what: str | None, last: int, target: Target, as_json: bool) -> None:
    """Show past changes: who, when, from where, why, and the result.

    With the ID of a change, only that one, with every circuit.
    """
    names = [switch.name for switch in target.lab.optical_switches]
    number = int(what) if what is not None and what.isdecimal() and what not in names else None
    with target.client(lambda _: (), talks=False) as client:
        if number is not None:
            rows: list[ChangeAnswer] = [client.reconfiguration(number)]
        else:
            # Few of the changes may be of this switch, so all are looked at.
            rows = client.reconfigurations(None if what else last)
    if number is not None and not as_json:
        say_changes(rows[0]["changes"])
    elif what is not None and number is None:
        name = target.lab.optical_switch(what).name
        rows = [row for row in rows if name in row["changes"]][-last:]
    table = out.Table(
        *out.numbers("id"),
        out.Column("when", whole=True),
        "who",
        out.Column("from", wide=True),
        *("circuits", "result", "why"),
        empty="no changes",
    )
    for row in rows:
        circuits = ", ".join(
            f"{ocs} −{len(c['breaks'])} +{len(c['makes'])}" for ocs, c in row["changes"].items()
        )
        state = row["state"]
        result = out.Coloured(state, "good")
        if state != "committed":
            result = out.Coloured(f"{state}: {row['message']}", "bad")
        who = (out.when(row["started_at"]), row.get("by", ""), row.get("origin", ""))
        table.add_row(str(row["id"]), *who, circuits or "none", result, row["why"])
    out.print_answer(rows, table, as_json=as_json)
