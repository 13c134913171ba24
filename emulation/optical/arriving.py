"""How much light reaches the inputs of an OCS: launch power less the fibre's loss."""

from __future__ import annotations

from testbed.lab import CircuitSwitch, Endpoint, Lab, PacketSwitch
from testbed.wiring import fibre_ends

_OCS_LAUNCH_DBM = 0.0


def arriving_dbm(lab: Lab, switch: CircuitSwitch) -> dict[int, float]:
    """Power in dBm at each plugged input of ``switch`` while its transmitter is on.

    Behind another OCS the light depends on that device's circuits, which this one cannot
    see: it is counted as 0 dBm less one insertion loss.
    """
    powers = {}
    for end, (other, fibre) in fibre_ends(lab).items():
        if end.device == switch.name and end.port.isdigit():
            powers[int(end.port)] = launch_dbm(lab, other) - fibre.loss_db
    return powers


def launch_dbm(lab: Lab, source: Endpoint) -> float:
    """What the transmitter (or OCS output) at ``source`` sends, in dBm."""
    device = lab.device(source.device)
    if isinstance(device, PacketSwitch):
        return device.launch_power_dbm
    if isinstance(device, CircuitSwitch):
        return _OCS_LAUNCH_DBM - device.insertion_loss_db
    return next(nic.launch_power_dbm for nic in device.nics if nic.name == source.port)
