"""``patchlight ocs`` commands that look: switches, maps, optical power, history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import click

from patchlight.cli.ocs import Target, say_changes, say_unreachable, target_options
from patchlight.cli.ocs.names import complete_switch, driven_switches, place_anywhere, plugged_in
from patchlight.console import rendering as out
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.spectrum import Channel
from patchlight.testbed.lab.wiring import Place, driven, parse_map

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.circuits import ChangeAnswer, LightAnswer, Lock, OcsMap

_VERDICTS: dict[str, out.Meaning] = {
    "ok": "good",
    "degraded": "caution",
    "unverified": "quiet",
    "failed": "bad",
}

switches_argument = click.argument(
    "switches", nargs=-1, metavar="[OCS…]", shell_complete=complete_switch
)


def named_switches(lab: Lab, names: tuple[str, ...]) -> list[str]:
    """These optical switches, or else all that have a driver.

    ``BadInput`` if one does not exist, or has no driver.
    """
    return [driven(lab.optical_switch(name)) for name in names] or [
        switch.name for switch in driven_switches(lab)
    ]


@click.command("list")
@target_options
def list_switches(target: Target, as_json: bool) -> None:
    """The lab's optical switches: where they are, whether they answer, what they say they are.

    If no controller answers: as the lab file has them.
    """
    from patchlight.client.client import ControllerError

    columns = ("name", "driver", "address", "ports", "switching_time_s", "insertion_loss_db")
    state = {"reachable": None, "since": None, "words": "", "identity": None}
    rows: list[dict[str, Any]] = [
        {**{name: getattr(switch, name) for name in columns}, **state, "standing_alarms": None}
        for switch in driven_switches(target.lab)
    ]
    try:
        with target.client() as client:
            rows = [{**row} for row in client.circuit_switches()]
    except ControllerError as error:
        out.say(f"as the lab file has them: {error.message}", err=True)
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
    for row in rows:
        words = row["words"]
        answers = out.Coloured("", "quiet")
        if row["reachable"] is not None:
            yes = row["reachable"]
            answers = out.Coloured("yes", "good") if yes else out.Coloured(f"no: {words}", "bad")
        is_a = row["identity"] or {}
        device = " ".join(filter(None, (is_a.get(k) for k in ("vendor", "model", "software"))))
        # Nothing for none: not every device has such a list.
        alarms = f"{row['standing_alarms']} standing" if row.get("standing_alarms") else ""
        table.add_row(
            *(str(row[column]) for column in ("name", "driver", "ports")),
            answers,
            out.Coloured(alarms, "caution"),
            device or (words if row["reachable"] else ""),
            row["address"],
            f"{row['switching_time_s'] * 1e3:g} ms",
        )
    out.print_answer(rows, table, as_json=as_json)


@click.command()
@switches_argument
@click.option("--power", "with_power", is_flag=True, help="Also measure the light.")
@target_options
def show(switches: tuple[str, ...], with_power: bool, target: Target, as_json: bool) -> None:
    """The present cross-connects, and which devices they join."""
    names = named_switches(target.lab, switches)
    if with_power:
        say_unreachable(_show_power(target, names, as_json=as_json))
        return
    with target.client(names) as client:
        answers, locks = client.circuits(), client.locks()
    circuits = {name: answers[name] for name in names}
    out.print_answer(
        circuits, lambda: _circuits_table(target.lab, circuits, locks).print(), as_json=as_json
    )
    say_unreachable(circuits)


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


@click.command()
@click.argument("places", nargs=-1, metavar="[OCS|PORT…]", shell_complete=complete_switch)
@target_options
def power(places: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Measured light of the circuits of an OCS, or of those of some ports."""
    whole = {switch.name for switch in target.lab.optical_switches}
    ports = [place_anywhere(target.lab, text) for text in places if text not in whole]
    names = [p for p in places if p in whole] + sorted(ocs for ocs, _ in ports)
    asked = list(dict.fromkeys(names)) or named_switches(target.lab, ())
    say_unreachable(_show_power(target, asked, ports, as_json=as_json))


def _show_power(
    target: Target, names: list[str], ports: Collection[tuple[str, Place]] = (), *, as_json: bool
) -> dict[str, LightAnswer]:
    """Print the power of these switches; of those of which ``ports`` are named, only theirs."""
    with target.client(names) as client:
        answers = {name: client.light(name) for name in names}
    for name in {ocs for ocs, _ in ports}:
        switch, asked = target.lab.optical_switch(name), [p for ocs, p in ports if ocs == name]
        answers[name]["circuits"] = [
            row
            for row in answers[name]["circuits"]
            for entry in parse_map(switch, [row["cross_connect"]])
            if any(place.holds(entry) for place in asked)
        ]
    _print_power(answers, as_json=as_json)
    return answers


def _print_power(answers: dict[str, LightAnswer], *, as_json: bool) -> None:
    if as_json:
        out.print_json(answers)
        return
    powers = out.numbers("in", "out", "budget", "baseline")
    crossed = out.Column("cross-connect", whole=True)
    table = out.Table(
        "OCS", crossed, *powers, "verdict", "light from", title="Optical power in dBm"
    )
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
@click.option("--accept", is_flag=True, help="Take the light as it is for the baselines.")
@target_options
def verify(switches: tuple[str, ...], accept: bool, target: Target, as_json: bool) -> None:
    """Check each circuit: as committed, port states, light against budget and baseline.

    The baseline is what the same circuit showed when it was made before. Ends with 1 if
    anything is wrong. What cannot be measured is 'unverified', what is inside the budget and
    has less power than it had is 'degraded': neither is wrong.
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
@click.argument("switch", metavar="[OCS]", required=False, shell_complete=complete_switch)
@click.option("--last", type=click.IntRange(min=1), default=20)
@click.option("--id", "number", type=int, metavar="ID", help="All of one change.")
@target_options
def history(
    switch: str | None, last: int, number: int | None, target: Target, as_json: bool
) -> None:
    """Who changed what, when, from where and why, and what became of it."""
    with target.client(lambda _: (), talks=False) as client:
        if number is not None:
            rows: list[ChangeAnswer] = [client.reconfiguration(number)]
        else:
            # Few of the changes may be of this switch, so all are looked at.
            rows = client.reconfigurations(None if switch else last)
    if switch is not None:
        name = target.lab.optical_switch(switch).name
        rows = [row for row in rows if name in row["changes"]][-last:]
    if number is not None and not as_json:
        say_changes(rows[0]["changes"])
    table = out.Table(
        *out.numbers("id"),
        out.Column("when", whole=True),
        "who",
        out.Column("from", wide=True),
        *("what", "came to", "why"),
    )
    for row in rows:
        what = ", ".join(
            f"{ocs} −{len(c['breaks'])} +{len(c['makes'])}" for ocs, c in row["changes"].items()
        )
        state = row["state"]
        came_to = out.Coloured(state, "good")
        if state != "committed":
            came_to = out.Coloured(f"{state}: {row['message']}", "bad")
        who = (out.when(row["started_at"]), row.get("by", ""), row.get("origin", ""))
        table.add_row(str(row["id"]), *who, what or "nothing", came_to, row["why"])
    out.print_answer(rows, table, as_json=as_json)
