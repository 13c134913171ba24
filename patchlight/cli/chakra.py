"""``patchlight simulate --chakra``: execution traces of a job's ranks on a network of flows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from patchlight.cli.rendering import print_json, say
from patchlight.testbed.errors import BadInput

_TAKEN = ("chakra", "network", "slow", "fail", "seed", "output", "as_json")


def simulate_chakra(context: click.Context, given: dict[str, Any]) -> None:
    """Run the traces that ``given["chakra"]`` names, print how long they take and write it.

    ``BadInput`` without a network, and for options that are about the jobs of a queue.
    """
    from patchlight.emulation.output_folder import cannot_write, check_output, write_result
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
            f"--chakra excludes {', '.join(others)}: one job is simulated, without a queue",
            hint=f"it goes with {', '.join(options[name] for name in _TAKEN[1:])}",
        )
    if given["network"] is None:
        raise BadInput("--chakra needs a --network", hint="like --network fat-tree:k=16")
    files = files_of_ranks(given["chakra"])
    folder = given["output"] or Path("results") / time.strftime("chakra-%Y%m%d-%H%M%S")
    check_output(folder)
    trouble = Trouble(
        [Slowness.parse(text) for text in given["slow"]],
        [Failure.parse(text) for text in given["fail"]],
        given["seed"],
    )
    result = result_of_chakra(network_of(given["network"]), files, trouble)
    result |= {"slow": list(given["slow"]), "fail": list(given["fail"])}
    try:
        write_result(result, folder)
    except OSError as error:
        raise cannot_write(folder, error) from error
    if given["as_json"]:
        print_json(result)
        return
    say(
        f"{result['ranks']} ranks, {result['operations']} operations on {result['network']}: "
        f"{result['completion_s']:.6g} s"
    )
    say(
        f"Of these the busiest rank computes for {result['compute_s']:.6g} s. "
        f"result.json: {folder}/"
    )
