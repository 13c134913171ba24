"""Ends that are joined by light, by name, over several circuit switches."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from patchlight.controller.changes.parts import CircuitParts
from patchlight.controller.changes.record import Refused
from patchlight.controller.changes.wanted import lighting
from patchlight.controller.storage.state_folder import open_store
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Endpoint
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import Links, trace_links
from patchlight.testbed.labfile.reader import load_lab

LAB = load_lab("four-ocs")


@pytest.fixture
def parts(tmp_path: Path) -> CircuitParts:
    return CircuitParts(LAB, {}, open_store(tmp_path))


def after(changed: Mapping[str, PortMap]) -> Links:
    return trace_links(LAB, {**LAB.initial_maps, **changed})


async def test_ends_are_joined_wherever_they_are(parts: CircuitParts) -> None:
    decide = await lighting(
        parts, [("server1", "tor2"), ("server5.nic0", "server16.nic0")]
    )
    links = after(decide(LAB.initial_maps))
    assert links.switch_of(LAB, Endpoint("server1", "nic0")) == "tor2"
    assert links.peer(Endpoint("server5", "nic0")) == Endpoint(
        "server16", "nic0"
    )
    # Nobody else lost light.
    dark = [
        host.name for host in LAB.hosts if links.peer(host.endpoint) is None
    ]
    assert len(dark) <= 1


async def test_a_port_that_is_named_is_the_one(parts: CircuitParts) -> None:
    decide = await lighting(parts, [("server1.gpu0", "tor2.7")])
    links = after(decide(LAB.initial_maps))
    assert links.peer(Endpoint("server1", "nic0")) == Endpoint("tor2", "7")


async def test_ends_that_are_none_are_refused(parts: CircuitParts) -> None:
    for pair, words in (
        (
            ("server1", "server1.nic0"),
            "are the same end: expected two different ends",
        ),
        (("server1", "tor2.9"), r"tor2\.9 has no fibre to an OCS"),
        (("server1", "server99.nic0"), "no device called 'server99'"),
        (("server1", "tor2.x"), r"tor2\.x has no fibre to an OCS"),
    ):
        with pytest.raises(BadInput, match=words):
            await lighting(parts, [pair])
    parts.locks.lock("ocs1", [1], "locked", "me", "")
    decide = await lighting(parts, [("server1", "tor2")])
    with pytest.raises(Refused, match="too few usable ports, or trunks"):
        decide(LAB.initial_maps)
