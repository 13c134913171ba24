"""Random flows on a network, in our simulator's arrays and as what the SimGrid program reads."""

import dataclasses
import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from patchlight.emulation.simulator.network.contract import NO_LINK, Network
from patchlight.emulation.simulator.network.jobs import Flows
from patchlight.emulation.simulator.network.specs import network_of

PYTHON = "/usr/bin/python3"
_PROGRAM = Path(__file__).with_name("simgrid_flows.py")
_LATENCY_S = 1e-6


@cache
def why_no_simgrid() -> str:
    """Why SimGrid cannot be run here; empty if it can."""
    try:
        done = subprocess.run(
            [PYTHON, "-c", "import simgrid"], capture_output=True, check=False
        )
    except OSError as error:
        return f"{PYTHON}: {error.strerror}"
    return (
        ""
        if done.returncode == 0
        else "SimGrid is not installed (apt: python3-simgrid)"
    )


def network_with_equal_latencies(spec: str) -> Network:
    """A network in which only NICs have latency: in CM02 it would weigh shares otherwise."""
    network = network_of(spec)
    latency_s = np.zeros(len(network.capacity_bps))
    latency_s[: network.nodes] = _LATENCY_S
    return dataclasses.replace(network, latency_s=latency_s)


def random_flows(
    nodes: int, count: int, span_s: float, mean_bytes: float, seed: int
) -> Flows:
    """Pairs of nodes drawn evenly, each pair once; exponential sizes; starts spread over a span."""
    rng = np.random.default_rng(seed)
    pairs = rng.choice(nodes * (nodes - 1), count, replace=False)
    source, other = np.divmod(pairs, nodes - 1)
    destination = other + (other >= source)
    nbytes = 1.0 + np.floor(rng.exponential(mean_bytes, count))
    return Flows(source, destination, nbytes, rng.uniform(0.0, span_s, count))


def simgrid_completions(network: Network, flows: Flows) -> dict[str, Any]:
    """When SimGrid has each flow complete (``ends_s``), and its processor time (``cpu_s``)."""
    count = len(flows.source)
    paths = network.paths(
        *flows[:2], np.arange(count), np.arange(network.nodes)
    )
    given = {
        "links_bps": network.capacity_bps.tolist(),
        "latency_s": _LATENCY_S,
        "flows": [
            {
                "source": int(flows.source[n]),
                "destination": int(flows.destination[n]),
                "path": [int(link) for link in paths[n] if link != NO_LINK],
                "bytes": int(flows.nbytes[n]),
                "start_s": float(flows.starts_s[n]),
            }
            for n in range(count)
        ],
    }
    done = subprocess.run(
        [PYTHON, _PROGRAM],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
