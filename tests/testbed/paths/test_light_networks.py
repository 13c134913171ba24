"""Which hosts of a lab can be sent to, and on which channels."""

import numpy as np
import pytest

from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.spectrum import SpectrumMap
from patchlight.testbed.labfile.reader import parse_lab
from patchlight.testbed.paths.light_networks import light_networks
from tests.support.coloured_labs import STAR, WAVELENGTHS


def _texts(
    lab: Lab, spectra: dict[str, SpectrumMap] | None = None
) -> list[list[str]]:
    networks = light_networks(lab, spectra or {})
    return [
        [" ".join(n.hosts), " ".join(map(str, n.channels))] for n in networks
    ]


def test_on_a_coupler_every_channel_is_everybodys() -> None:
    (network,) = light_networks(parse_lab(STAR), {})
    assert network.hosts == tuple(f"server{n}.nic0" for n in range(1, 5))
    assert [str(each) for each in network.channels] == [
        "193.100",
        "193.150",
        "193.200",
        "193.250",
    ]
    assert (network.paths.channels, network.paths.routes) == (4, None)
    assert network.paths.tuning_s == pytest.approx(1e-3)


def test_through_a_wavelength_switch_the_channel_says_to_whom() -> None:
    lab = parse_lab(WAVELENGTHS)
    wanted = SpectrumMap.parse(
        [
            "1>2@193.100",
            "2>3@193.100",
            "3>1@193.100",
            "1>3@193.150",
            "3>2@193.150",
            "2>1@193.150",
        ]
    )
    (network,) = light_networks(lab, {"wss1": wanted})
    assert network.hosts == ("server1.nic0", "server2.nic0", "server3.nic0")
    assert network.paths.routes is not None
    assert np.array_equal(
        network.paths.routes, [[-1, 0, 1], [1, -1, 0], [0, 1, -1]]
    )


def test_a_switch_that_separates_makes_two_networks() -> None:
    lab = parse_lab(WAVELENGTHS)
    assert _texts(
        lab, {"wss1": SpectrumMap.parse(["1-2@193.100", "3-4@193.150"])}
    ) == [
        ["server1.nic0 server2.nic0", "193.100"],
        ["server3.nic0 server4.nic0", "193.150"],
    ]
    assert _texts(lab, {"wss1": SpectrumMap()}) == []


def test_networks_are_the_same_as_long_as_their_light_goes_the_same_ways() -> (
    None
):
    lab = parse_lab(WAVELENGTHS)
    one, again, other = (
        light_networks(lab, {"wss1": SpectrumMap.parse(texts)})[0]
        for texts in (["1-2@193.100"], ["1-2@193.100"], ["1-2@193.150"])
    )
    assert one.same(again)
    assert not one.same(other)
    assert not one.same(light_networks(parse_lab(STAR), {})[0])
