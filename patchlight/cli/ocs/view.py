"""``patchlight ocs`` commands that look: switches, maps, optical power, history."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import click

from patchlight.cli.ocs import (
    Flags,
    Target,
    change_lines,
    change_options,
    confirmed,
    not_made,
    print_change,
    print_record,
    say_unreachable,
    target_options,
)
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
        CircuitSwitchShape,
        LightAnswer,
        Lock,
        OcsMap,
        PathsShape,
    )

_SEVERITIES: dict[str, out.Meaning] = {
    "critical": "bad",
    "major": "bad",
    "notice": "quiet",
}
_VERDICTS: dict[str, out.Meaning] = {
    "ok": "good",
    "degraded": "caution",
    "unverified": "quiet",
    "failed": "bad",
}

switches_argument = click.argument(
    "switches",
    nargs=-1,
    metavar="[OCS…]",
    shell_complete=complete_switch,
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
@click.argument(
    "places",
    nargs=-1,
    metavar="[OCS|PORT…]",
    shell_complete=complete_any_port,
)
@click.option(
    "--power",
    is_flag=True,
    help="Measure the optical power of the circuits instead.",
)
@click.option(
    "--alarms",
    is_flag=True,
    help="Show the alarms of the devices instead.",
)
@click.option(
    "--paths",
    is_flag=True,
    help="Show the optical paths of tunable transceivers instead.",
)
@target_options
def show(
    places: tuple[str, ...],
    power: bool,
    alarms: bool,
    paths: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Show optical switches and their circuits.

    With ports, show only their circuits. Alarms, including notices, date back to when the
    controller connected to the device; with --direct only present ones are shown. Paths are those
    in use or waited for, with their networks: see docs/paths.md.
    """
    if power + alarms + paths > 1:
        raise BadInput(
            "--power, --alarms and --paths exclude each other: give one"
        )
    if paths:
        if places or target.direct:
            raise BadInput(
                "--paths shows all paths: leave out OCS and --direct"
            )
        with target.client() as client:
            found = client.paths()
        out.print_answer(found, lambda: _print_paths(found), as_json=as_json)
        return
    whole = {switch.name for switch in target.lab.optical_switches}
    for text in places:
        if not (
            "." in text or text.isdecimal() or text in target.lab.host_names
        ):
            target.lab.optical_switch(text)  # says so if there is none
    given = [
        place_anywhere(target.lab, text)
        for text in places
        if text not in whole
    ]
    wanted = [p for p in places if p in whole] + sorted(
        ocs for ocs, _ in given
    )
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
                    target.lab,
                    name,
                    [r.cross_connect for r in answer.circuits],
                    ports,
                )
                answer.circuits = [
                    r for r in answer.circuits if r.cross_connect in kept
                ]
            _print_power(powers, as_json=as_json)
            say_unreachable(powers)
            return
        answers = client.circuits()
        locks = client.locks()
        states = {row.name: row for row in client.circuit_switches()}
    circuits = {name: answers[name] for name in names}
    for name, each in circuits.items():
        if each.map is not None:
            each.map = _kept(
                target.lab,
                name,
                each.map,
                ports,
            )
    tables = out.Screen(
        _switches_table([states[name] for name in names]),
        _circuits_table(target.lab, circuits, locks),
    )
    out.print_answer(
        {
            name: each.as_json | states[name].as_json
            for name, each in circuits.items()
        },
        tables.print,
        as_json=as_json,
    )
    say_unreachable(circuits)


def _kept(
    lab: Lab,
    ocs: str,
    texts: Collection[str],
    ports: Ports,
) -> list[str]:
    """Of these cross-connects those at the ports of this switch; all if none of it is named."""
    places = [place for name, place in ports if name == ocs]
    switch = lab.optical_switch(ocs)
    return [
        text
        for text in texts
        if not places
        or any(
            place.holds(entry)
            for place in places
            for entry in parse_map(switch, [text])
        )
    ]


def _switches_table(rows: Iterable[CircuitSwitchShape]) -> out.Table:
    table = out.Table(
        out.Column("OCS", whole=True),
        out.Column("driver", whole=True),
        *out.numbers("ports"),
        "answers",
        "alarms",
        "device",
        out.Column("address", wide=True),
        out.Column(
            "switching time",
            wide=True,
            right=True,
        ),
    )
    for row in rows:
        words = row.words
        yes = row.reachable
        is_a = row.identity
        known = (is_a.vendor, is_a.model, is_a.software) if is_a else ()
        device = " ".join(filter(None, known))
        # Nothing for none: not every device has such a list.
        alarms = (
            f"{row.standing_alarms} standing" if row.standing_alarms else ""
        )
        table.add_row(
            row.name,
            row.driver,
            str(row.ports),
            out.Coloured("yes", "good")
            if yes
            else out.Coloured(f"no: {words}", "bad"),
            out.Coloured(alarms, "caution"),
            device or (words if yes else ""),
            row.address,
            f"{row.switching_time_s * 1e3:g} ms",
        )
    return table


def _print_alarms(rows: Sequence[AlarmShape], *, as_json: bool) -> None:
    table = out.Table(
        "when",
        "OCS",
        "severity",
        "standing",
        "about",
        "message",
        empty="no alarms",
    )
    for row in rows:
        severity = out.Coloured(
            row.severity, _SEVERITIES.get(row.severity, "caution")
        )
        cells = (row.ocs, severity, "yes" if row.standing else "")
        table.add_row(
            out.when(row.at),
            *cells,
            row.subject,
            row.words,
        )
    out.print_answer(rows, table, as_json=as_json)


def _circuits_table(
    lab: Lab,
    circuits: dict[str, OcsMap],
    locks: list[Lock],
) -> out.Table:
    table = out.Table(
        "OCS",
        out.Column("cross-connect", whole=True),
        "from",
        "to",
        "locked",
    )
    for name, answer in circuits.items():
        held = {
            Place(
                lock.port,
                Channel.parse(lock.channel) if lock.channel else None,
            ): lock
            for lock in locks
            if lock.ocs == name
        }
        for entry in parse_map(lab.optical_switch(name), answer.map or ()):
            locked = ", ".join(
                f"{place} {lock.kind} by {lock.by}"
                for place, lock in held.items()
                if place.holds(entry)
            )
            ends = (
                plugged_in(lab, name, port) for port in (entry.inp, entry.out)
            )
            table.add_row(
                name,
                str(entry),
                *ends,
                out.Coloured(locked, "caution"),
            )
    return table


def _print_power(answers: dict[str, LightAnswer], *, as_json: bool) -> None:
    if as_json:
        out.print_json(answers)
        return
    powers = out.numbers(
        "in",
        "out",
        "budget",
        "baseline",
    )
    crossed = out.Column("cross-connect", whole=True)
    table = out.Table(
        "OCS",
        crossed,
        *powers,
        "verdict",
        "source",
        title="Optical power in dBm",
    )
    for name, answer in answers.items():
        for row in answer.circuits:
            measured = (
                row.in_dbm,
                row.out_dbm,
                row.expected_dbm,
                row.baseline_dbm,
            )
            words = row.words or row.verdict
            meaning = _VERDICTS.get(row.verdict, "bad")
            table.add_row(
                name,
                row.cross_connect,
                *("" if dbm is None else f"{dbm:.1f}" for dbm in measured),
                out.Coloured(words, meaning),
                row.source or "",
            )
    table.print()
    for name, answer in answers.items():
        for port, state in answer.ports.items():
            out.say(f"{name} {port} is {state.condition} ({state.words})")


def _print_paths(found: PathsShape) -> None:
    if not found.networks:
        out.say(
            "No two hosts of this lab have tunable transceivers with an optical path between them."
        )
        return
    if found.nodes:
        title = "Hosts that coordinate themselves"
        nodes = out.Table(
            "host",
            "job",
            "state",
            "to",
            "THz",
            title=title,
        )
        for node in found.nodes:
            state = out.Coloured(
                node.state, "good" if node.state == "sends" else "quiet"
            )
            to = node.destination or "", node.channel or ""
            nodes.add_row(
                node.host,
                node.job,
                state,
                *to,
            )
        nodes.print()
    columns = ("path", "from", "to", "THz", "state", "for", "bytes", "user")
    paths = out.Table(
        *columns,
        empty="No path is in use or waited for.",
    )
    now = time.time()
    # Those that send come before those that wait.
    for path in sorted(found.paths, key=lambda path: path.state):
        is_granted = path.state == "granted"
        began_at = path.starts_at if is_granted else None
        since = path.wanted_at if began_at is None else began_at
        ends = path.source, path.destination, path.channel or ""
        state = out.Coloured(path.state, "good" if is_granted else "quiet")
        size = f"{path.bytes:.3g}"
        lasts = out.span(max(0.0, now - since))
        paths.add_row(
            str(path.id),
            *ends,
            state,
            lasts,
            size,
            path.by,
        )
    networks = out.Table(
        "network",
        "hosts",
        "channels",
        "a channel serves",
        "tuned in",
    )
    for number, network in enumerate(found.networks, 1):
        hosts = network.hosts
        channels = network.channels
        networks.add_row(
            str(number),
            f"{hosts[0]} … {hosts[-1]} ({len(hosts)})",
            f"{channels[0]}-{channels[-1]} ({len(channels)})",
            "one destination" if network.routed else "one sender at a time",
            f"{network.tuning_s * 1e3:g} ms",
        )
    out.Screen(paths, networks).print()


@click.command()
@switches_argument
@click.option(
    "--accept",
    is_flag=True,
    help="Make the present power the baseline.",
)
@click.option(
    "--adopt",
    is_flag=True,
    help="Record the present circuits as intended.",
)
@click.option(
    "--repair",
    is_flag=True,
    help="Restore the circuits of the last change.",
)
@change_options
def verify(
    switches: tuple[str, ...],
    target: Target,
    options: Flags,
    **how: bool,
) -> None:
    """Check circuits and their optical power.

    Circuits are compared with the last change.

    The power is compared with the loss budget and with the baseline, its power when this circuit
    was made before. The exit code is 1 if a circuit differs from the last change, or if a circuit,
    a port or a device has failed. A circuit without a measurement is 'unverified'; one within the
    budget that lost power since its baseline is 'degraded'. Neither is a failure.
    """
    if sum(how.values()) > 1:
        raise BadInput(
            "--accept, --adopt and --repair exclude each other: give one"
        )
    names = named_switches(target.lab, switches)
    wanted = names if switches else []
    with target.client(names) as client:
        if how["repair"]:
            preview = client.preview_repair(wanted)
            if terms := confirmed(preview, options, repairs=True):
                record = client.repair(wanted, **terms)
                print_change(record, as_json=options.as_json)
            return
        if how["adopt"] and not options.dry_run:
            print_record(
                client.adopt(wanted, options.why), as_json=options.as_json
            )
            return
        if how["accept"] and not options.dry_run:
            client.accept_light(names)
        drift = client.drift()
        powers = {name: client.light(name) for name in names}
    if options.as_json:
        out.print_json(
            {
                name: (drift[name].as_json if name in drift else {})
                | light.as_json
                for name, light in powers.items()
            }
        )
    else:
        _print_power(powers, as_json=False)
    wrong: list[str] = []
    hint = None
    for name, light in powers.items():
        if light.unreachable:
            wrong.append(f"{name} does not answer: {light.unreachable}")
            continue
        wrong += [
            f"{name}: {row.words}"
            for row in light.circuits
            if row.verdict == "failed"
        ]
        broken = {p for p, s in light.ports.items() if s.condition == "failed"}
        wrong += [f"{name}: {port} has failed" for port in sorted(broken)]
        differs = drift.get(name)
        lines = [
            f"{name} - {text} is missing"
            for text in (differs.missing if differs else ())
        ]
        lines += [
            f"{name} + {text} was made outside Patchlight"
            for text in (differs.unknown if differs else ())
        ]
        if lines:
            wrong += lines
            hint = "--repair restores the last change, --adopt records the present circuits"
        elif differs and differs.committed_at and not options.as_json:
            number = differs.reconfiguration
            at = differs.committed_at
            out.say(
                f"{name} matches its committed map: "
                f"{f'change {number}' if number else out.when(at)}"
            )
    if wrong:
        raise PatchlightError("\n".join(wrong), hint=hint)
    if not options.as_json:
        kinds = Counter(
            row.verdict for light in powers.values() for row in light.circuits
        )
        degraded = (
            f", {kinds['degraded']} degraded" if kinds["degraded"] else ""
        )
        verified = out.counted(kinds["ok"], "circuit")
        out.say(
            f"{verified} verified{degraded}, {kinds['unverified']} unverified, none failed"
        )


@click.command()
@click.argument(
    "what",
    metavar="[OCS|ID]",
    required=False,
    shell_complete=complete_switch,
)
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=20,
    help="Number of changes.",
)
@target_options
def history(
    what: str | None,
    last: int,
    target: Target,
    as_json: bool,
) -> None:
    """Show past changes: who, when, from where, why, and the result.

    With the ID of a change, show only that change, with every circuit.
    """
    names = [switch.name for switch in target.lab.optical_switches]
    number = (
        int(what)
        if what is not None and what.isdecimal() and what not in names
        else None
    )
    with target.client(lambda _: (), talks=False) as client:
        if number is not None:
            rows: list[ChangeAnswer] = [client.reconfiguration(number)]
        else:
            # Few of the changes may be of this switch, so all are looked at.
            rows = client.reconfigurations(None if what else last)
    if number is not None and not as_json:
        for line in change_lines(rows[0].changes):
            out.say(f"{not_made(rows[0])}{line}")
    elif what is not None and number is None:
        name = target.lab.optical_switch(what).name
        rows = [row for row in rows if name in row.changes][-last:]
    table = out.Table(
        *out.numbers("id"),
        out.Column("when", whole=True),
        "who",
        out.Column("from", wide=True),
        "circuits",
        "result",
        "why",
        empty="no changes",
    )
    for row in rows:
        circuits = ", ".join(
            f"{ocs} −{len(c.breaks)} +{len(c.makes)}"
            for ocs, c in row.changes.items()
        )
        state = row.state
        result = out.Coloured(state, "good")
        if state != "committed":
            result = out.Coloured(f"{state}: {row.message}", "bad")
        who = (
            out.when(row.started_at),
            row.by,
            row.origin,
        )
        table.add_row(
            str(row.id),
            *who,
            f"{not_made(row)}{circuits}" or "none",
            result,
            row.why,
        )
    out.print_answer(rows, table, as_json=as_json)
