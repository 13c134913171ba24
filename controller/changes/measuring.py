"""What a device measures of the light at both ends of entries of its map.

A port of a circuit switch has one light; one of a wavelength switch has many, and only a device
that tells channels apart says anything of one of them.
"""

from collections.abc import Mapping, Sequence

from patchlight.controller.circuits.contract import AnyDriver, DirectedPort, TellsChannelPowers
from patchlight.testbed.lab.model import OpticalSwitch
from patchlight.testbed.lab.optical_links import Entry
from patchlight.testbed.lab.spectrum import ChannelConnect
from patchlight.testbed.lab.wavelengths import WavelengthSwitch


def measures_each(switch: OpticalSwitch, driver: AnyDriver) -> bool:
    """Whether the device can tell what each entry of its map shows at its output."""
    if isinstance(switch, WavelengthSwitch) and not isinstance(driver, TellsChannelPowers):
        return False
    return driver.capabilities.power_out


async def powers_of(
    driver: AnyDriver, entries: Sequence[Entry], arriving_dbm: Mapping[DirectedPort, float | None]
) -> list[tuple[float | None, float | None]]:
    """For each entry the power (dBm) of its light at the input and at the output.

    ``None``: it is dark, or nobody measures it. ``arriving_dbm`` is the power at inputs that was
    measured a moment ago; what is there is not asked again of a circuit switch.
    """
    ends = [(DirectedPort("in", c.inp), DirectedPort("out", c.out)) for c in entries]
    if any(isinstance(c, ChannelConnect) for c in entries):
        return await _of_channels(driver, entries, ends)
    ports = [out for _, out in ends]
    if driver.capabilities.power_in:
        ports += [inp for inp, _ in ends if inp not in arriving_dbm]
    measured_dbm = {**arriving_dbm, **await driver.power(ports)}
    return [(measured_dbm.get(inp), measured_dbm.get(out)) for inp, out in ends]


async def _of_channels(
    driver: AnyDriver, entries: Sequence[Entry], ends: Sequence[tuple[DirectedPort, DirectedPort]]
) -> list[tuple[float | None, float | None]]:
    if not isinstance(driver, TellsChannelPowers):
        return [(None, None)] * len(entries)
    measured_dbm = await driver.channel_powers({port: None for both in ends for port in both})

    def power_dbm(port: DirectedPort, entry: Entry) -> float | None:
        channel = entry.channel if isinstance(entry, ChannelConnect) else None
        return None if channel is None else measured_dbm.get(port, {}).get(channel)

    return [
        (power_dbm(inp, entry), power_dbm(out, entry))
        for (inp, out), entry in zip(ends, entries, strict=True)
    ]
