"""Circuits engineered for traffic, and light over several small OCSs, in emulated labs."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from patchlight import EmulatedLab
from patchlight.client.client import ControllerClient
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.rules import PolicyChoice
from patchlight.testbed.lab.wiring import Links, trace_links
from patchlight.testbed.labfile.reader import load_lab
from tests.support.lab_jobs import (
    checked_iterations,
    connected,
    ended,
    every_iteration,
)
from tests.support.ring_jobs import ring_spec

pytestmark = [pytest.mark.root, pytest.mark.ovs]

PAGE = Path(__file__).parents[2] / "docs" / "topology.md"
SERVERS = 4


def first_servers(lab: Lab, count: int) -> Lab:
    """The lab with so many of its servers, and what belongs to them."""
    gone = {
        f"{kind}{n}"
        for kind in ("server", "eswitch")
        for n in range(count + 1, 17)
    }
    return lab.with_changes(
        servers=tuple(each for each in lab.servers if each.name not in gone),
        packet_switches=tuple(
            each for each in lab.packet_switches if each.name not in gone
        ),
        fibres=tuple(
            f for f in lab.fibres if not {f.a.device, f.b.device} & gone
        ),
    )


def links_of(lab: Lab, client: ControllerClient) -> Links:
    maps = {
        ocs: PortMap.parse(each.map or ())
        for ocs, each in client.circuits().items()
    }
    return trace_links(lab, maps)


def test_a_ring_is_closed_through_the_ocs_without_a_tor(
    tmp_path: Path,
) -> None:
    (code,) = re.findall(
        r"^```python\n# my_topology.py\n(.*?)^```$",
        PAGE.read_text(),
        re.S | re.M,
    )
    (tmp_path / "my_topology.py").write_text(code)
    mine = f"{tmp_path / 'my_topology.py'}:TwoMatchings"
    lab = first_servers(load_lab("ring16"), SERVERS)
    with (
        EmulatedLab.from_lab(
            lab,
            1000,
            name="no-tor",
            workers="process",
            policies=PolicyChoice(topology=mine, deadline_s=30.0),
        ) as emulated,
        connected(emulated) as client,
    ):
        ring = {
            frozenset((f"eswitch{n}", f"eswitch{n % SERVERS + 1}"))
            for n in range(1, 5)
        }
        for topology in ("ring", mine):
            # One after the other: what the first one lit is cleared away.
            client.reconfigure({"ocs1": ["1-2", "3-4"]}, only=True)
            spec = replace(
                ring_spec("on-a-ring", 2, 1e6, 0.01, SERVERS),
                topology=topology,
            )
            job = ended(client, client.submit([spec])[0].id)
            assert job.state == "done", job.message
            assert job.policy_faults == 0
            assert checked_iterations(client, job.id) == every_iteration(
                SERVERS, 2
            )
            pairs = links_of(lab, client).pairs()
            joined = {
                frozenset((a.device, b.device))
                for a, b in pairs
                if a.port != "1"
            }
            assert ring <= joined


def test_light_goes_over_four_small_circuit_switches() -> None:
    with (
        EmulatedLab.from_file(
            "four-ocs", 1000, name="small-ocs", agents=False
        ) as emulated,
        connected(emulated) as client,
    ):
        lab = emulated.lab
        together = ["server1", "server13"]
        record = client.together(together)
        assert record.state == "committed", record
        assert {*record.changes} >= {"ocs1", "ocs4"}
        links = links_of(lab, client)
        nics = [lab.host(name).endpoint for name in together]
        assert len({links.switch_of(lab, nic) for nic in nics}) == 1
        assert {len(links.paths[nic].hops) for nic in nics} == {1, 2}
        record = client.light_paths([("server5", "tor2")])
        assert record.state == "committed", record
        assert (
            links_of(lab, client).switch_of(lab, lab.host("server5").endpoint)
            == "tor2"
        )
        for name in ("server1", "server5"):
            address = lab.host("server13").nic.address
            emulated.host(name).run(f"ping -c 1 -W 5 {address}")
