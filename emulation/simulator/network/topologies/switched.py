"""Networks that light a circuit for whoever talks to whom: SiP-OCS, and ODDL's fast layer."""

import numpy as np

from patchlight.emulation.simulator.network.contract import Switching, checked_nodes, links
from patchlight.emulation.simulator.network.topologies.packet import LATENCY, RATE, Ideal


def sip_ocs(
    spec: str,
    nodes: int = 64,
    ports: int = 8,
    rate: float = RATE,
    latency: float = LATENCY,
    switching: float = 25e-3,
) -> Ideal:
    """GPUs with ``ports`` light ways over as many OCSs (Khani et al., *SiP-ML*, SIGCOMM 2021).

    Whoever talks to one node gives it all its light; circuits of others are dark for ``switching``
    when those that are talked to change. Up to ``ports`` others at a time.
    """
    checked_nodes(spec, nodes)
    return Ideal(
        spec,
        rate,
        np.zeros(nodes, np.int64),
        links((2 * nodes, rate)),
        np.full(2 * nodes, latency / 2),
        {"transceiver-100g": nodes * rate / 100e9, "ocs-port": nodes * ports},
        Switching(switching, ports),
    )


def oddl(
    spec: str,
    nodes: int = 64,
    rate: float = RATE,
    latency: float = LATENCY,
    switching: float = 100e-9,
    channels: int = 64,
) -> Ideal:
    """Tunable transceivers in a network that the wavelength switches isolate (Li et al., 2024).

    Our reading of the abstract: a job's nodes reach each other over a network of its own, one at a
    time, tuning in ``switching``; with enough ``channels`` for all nodes, NICs are all that limits.
    Fewer channels than a job has nodes are not in this model.
    """
    checked_nodes(spec, nodes)
    return Ideal(
        spec,
        rate,
        np.zeros(nodes, np.int64),
        links((2 * nodes, rate)),
        np.full(2 * nodes, latency / 2),
        {
            "tunable-transceiver-100g": nodes * rate / 100e9,
            "wss-port": 2 * nodes,
            "nic-100g": nodes * rate / 100e9,
        },
        Switching(switching, 1),
    )
