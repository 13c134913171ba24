"""``patchlight simulate --chakra``: execution traces of a job's ranks on a network of flows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from patchlight.console.rendering import print_json, say
from patchlight.testbed.errors import BadInput
from patchlight.testbed.units import parse_time

_TAKEN = ("chakra", "network", "skip_bad", "slow", "fail", "seed", "output", "as_json")


def simulate_chakra(context: click.Context, given: dict[str, Any]) -> None:
    """Run the jobs that ``given["chakra"]`` names, print how long they take and write it.

    ``BadInput`` without a network, and for options that are about the jobs of a queue.
    """
    from patchlight.emulation.results import cannot_write, check_output, write_result
    from patchlight.emulation.simulator.network import Failure, Slowness, Trouble, network_of
    from patchlight.emulation.simulator.network.chakra import result_of_chakra
    from patchlight.emulation.simulator.network.chakra_file import files_of_ranks

    options = {each.name: each.opts[0] for each in context.command.params}
    others = [
        option
        for name, option in options.items()
        if name not in _TAKEN
        and context.get_parameter_source(name or "") is ParameterSource.COMMANDLINE
    ]
    if others:
        raise BadInput(
            f"--chakra excludes {', '.join(others)}: there is no queue",
            hint=f"it goes with {', '.join(options[name] for name in _TAKEN[1:])}",
        )
    if given["network"] is None:
        raise BadInput("--chakra needs a --network", hint="like --network fat-tree:k=16")
    traces = []
    for text in given["chakra"]:
        prefix, at, begins = str(text).rpartition("@+")
        name, begins_s = (prefix, parse_time(begins)) if at else (str(text), 0.0)
        traces.append((name, files_of_ranks(Path(name)), begins_s))
    folder = given["output"] or Path("results") / time.strftime("chakra-%Y%m%d-%H%M%S")
    check_output(folder)
    trouble = Trouble(
        [Slowness.parse(text) for text in given["slow"]],
        [Failure.parse(text) for text in given["fail"]],
        given["seed"],
    )
    result = result_of_chakra(network_of(given["network"]), traces, trouble, given["skip_bad"])
    result |= {"slow": list(given["slow"]), "fail": list(given["fail"])}
    try:
        write_result(result, folder)
    except OSError as error:
        raise cannot_write(folder, error) from error
    if given["as_json"]:
        print_json(result)
        return
    for job in result["jobs"]:
        several = f"{job['chakra']} from {job['begins_s']:g} s: " if len(traces) > 1 else ""
        say(
            f"{several}{job['ranks']} ranks, {job['operations']} operations on "
            f"{result['network']}: {job['completion_s']:.6g} s; the busiest rank computes for "
            f"{job['compute_s']:.6g} s in all"
        )
        for note, count in job["notes"].items():
            say(f"{job['chakra']}: {note}: {count}", meaning="caution")
    after = f"All are done after {result['completion_s']:.6g} s. " if len(traces) > 1 else ""
    say(f"{after}result.json: {folder}/")
