"""Networks that light a circuit for whoever talks to whom: SiP-OCS, and ODDL's fast layer."""

import numpy as np

from patchlight.emulation.simulator.network.contract import Switching, checked_nodes, links
from patchlight.emulation.simulator.network.topologies.packet import LATENCY, RATE, Ideal
from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.issues import nearest
from patchlight.testbed.paths.schedulers import SCHEDULERS


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
    channels: int = 0,
    scheduler: str = "collective",
    control: float = 0.0,
    setup: float = 100e-3,
) -> Ideal:
    """Tunable transceivers in a network that the wavelength switches isolate (W. Li et al., 2024).

    Our reading of the abstract: wavelength switches give a job a network of its own in ``setup``
    seconds; in it a node reaches one other at a time, tuning in ``switching``. Light of one channel
    goes to several receivers at a time if the channels are routed; then NICs are all that limits.
    With ``channels`` a job's nodes are joined by a coupler: each channel has one sender at
    a time. ``scheduler`` says whose turn it is, which takes ``control`` there and back.
    """
    checked_nodes(spec, nodes)
    if scheduler not in SCHEDULERS:
        raise BadInput(f"{spec}: scheduler={scheduler}: {nearest(scheduler, SCHEDULERS)}")
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
        Switching(
            switching, 1, channels=channels, scheduler=scheduler, control_s=control, setup_s=setup
        ),
    )
