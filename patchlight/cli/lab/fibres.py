"""How a fibre of a lab that is up is printed."""

from typing import Any

from patchlight.emulation.lab.wires import FibreState
from patchlight.testbed.units import format_time, write_share


def fibre_line(state: FibreState) -> str:
    """A fibre as it is now, in a line."""
    fibre, impairment = state.fibre, state.impairment
    parts = ["up" if state.up else "down"]
    if impairment.delay_s:
        parts.append(f"delay {format_time(impairment.delay_s)}")
    if impairment.jitter_s:
        parts.append(f"jitter {format_time(impairment.jitter_s)}")
    if impairment.packet_loss:
        parts.append(f"packet loss {write_share(impairment.packet_loss)}")
    return f"{fibre.a} – {fibre.b}  {', '.join(parts)}"


def fibre_row(state: FibreState) -> dict[str, Any]:
    """The same for programs; times in seconds, the loss as a share."""
    fibre, impairment = state.fibre, state.impairment
    return {
        "a": str(fibre.a),
        "b": str(fibre.b),
        "up": state.up,
        "delay_s": impairment.delay_s,
        "jitter_s": impairment.jitter_s,
        "packet_loss": impairment.packet_loss,
    }
