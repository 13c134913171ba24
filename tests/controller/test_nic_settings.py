"""NICs that light joins and that are set differently."""

from patchlight.controller.hosts.fleet import differences
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import parse_lab
from patchlight.testbed.wire.agent_status import NicStatus

LAB = parse_lab("""\
name: direct
network: 192.168.10.0/24
servers:
  - {name: s1, nics: [{name: n, address: 192.168.10.11, dscp: 26}]}
  - {name: s2, nics: [{name: n, address: 192.168.10.12}]}
  - {name: "s[3-6]", nics: [{name: n, address: "192.168.10.[13-16]"}]}
packet_switches: [{name: tor1, datapath_id: 1, ports: 4}]
circuit_switches:
  - {name: ocs1, driver: calient-tl1, address: "10.0.0.5:3082", ports: 8, cross_connects: [1-2]}
fibres: ["s[1-2].n - ocs1.[1-2]", "s[3-6].n - tor1.[1-4]"]
""")


def nic(**keys: object) -> NicStatus:
    return NicStatus.model_validate(
        {"name": "n", "address": "a", "state": "idle", **keys}
    )


def test_both_ends_of_a_circuit_are_compared_and_those_at_one_switch() -> None:
    links = trace_links(LAB, LAB.initial_maps)
    nics = {
        "s1.n": nic(mtu=9000, pfc=[3], dscp_priorities={26: 3}),
        "s2.n": nic(mtu=1500, pfc=[], dscp_priorities={26: 3}),
        "s3.n": nic(mtu=1500),
        "s4.n": nic(mtu=9000, pfc=[3, 4]),
        "s5.n": nic(mtu=9000, pfc=[3, 4]),
    }
    assert differences(LAB, links, nics) == [
        "MTU differs: 1500 at s2.n; 9000 at s1.n",
        "PFC differs: 3 at s1.n; off at s2.n",
        "DSCP differs: 26 at s1.n; none at s2.n",
        "MTU differs: 1500 at s3.n; 9000 at s4.n, s5.n",
    ]
    # What is not joined is not compared, nor what nobody knows.
    assert differences(LAB, trace_links(LAB, {}), nics) == [
        "MTU differs: 1500 at s3.n; 9000 at s4.n, s5.n"
    ]
    assert differences(LAB, None, nics) == []
    assert differences(LAB, trace_links(LAB, {}), {}) == []
