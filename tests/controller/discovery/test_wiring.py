"""What was found beside what the lab file has: words, differences, and the fibres put right."""

from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from patchlight.controller.changes.record import ChangeOptions
from patchlight.controller.discovery.discovery import (
    FoundWiring,
    expected_ends,
    found_wiring,
)
from patchlight.controller.discovery.search import (
    LIGHT,
    Findings,
    Heard,
    OcsPort,
)
from patchlight.controller.parts import Controller, ControllerSettings
from patchlight.testbed.lab.model import Endpoint
from patchlight.testbed.labfile.reader import builtin_lab, load_lab, parse_lab
from patchlight.testbed.labfile.writer import rewired
from patchlight.testbed.wire.rest.requests import DiscoveryRequest

LAB = load_lab("ofc2022")
ENDS = {str(end) for end in LAB.fibre_ends if end.device != "ocs1"}
BESIDE = frozenset({("tor1.7", "tor2.7"), ("tor2.7", "tor1.7")})


def _port(number: int, ocs: str = "ocs1") -> OcsPort:
    return OcsPort(ocs, number)


def _found(changes: dict[int, str | None] | None = None) -> Findings:
    """As the lab file has, but for these ports."""
    real: dict[OcsPort, str | None] = {**expected_ends(LAB)}
    real |= {_port(number): end for number, end in (changes or {}).items()}
    return Findings(dict(real), dict(real))


def _wiring(found: Findings, elsewhere: Heard = BESIDE) -> FoundWiring:
    return found_wiring(LAB, found, elsewhere, ENDS, {})


async def test_a_search_that_is_stopped_before_its_first_step_has_stopped(
    tmp_path: Path,
) -> None:
    switch = replace(
        LAB.circuit_switch("ocs1"), driver="dry-run", address="127.0.0.1:1"
    )
    lab = LAB.with_changes(circuit_switches=(switch,))
    controller = Controller(
        lab, ControllerSettings(tmp_path, "127.0.0.1:0", "127.0.0.1:0")
    )
    try:
        await controller.circuits.devices.open()
        before = await controller.circuits.maps.read()
        request = DiscoveryRequest(ports={"ocs1": [*range(101, 105)]})
        await controller.discovery.start(request, ChangeOptions(by="ann"))
        await controller.discovery.stop()
        status = controller.discovery.status
        assert (status.state, status.open, status.wiring) == (
            "stopped",
            False,
            None,
        )
        assert await controller.circuits.maps.read() == before
        assert controller.circuits.locks.all() == []
    finally:
        await controller.scheduler.close()
        controller.store.close()
        controller.series.close()


def test_a_lab_that_is_wired_as_its_file_says_has_no_differences() -> None:
    wiring = _wiring(_found())
    assert (wiring.differences, wiring.doubts, wiring.fibres) == (
        (),
        (),
        LAB.fibres,
    )
    assert {row.verdict for row in wiring.ports} == {"as said"}


def test_two_swapped_fibres_are_told_and_each_keeps_its_place_and_rate() -> (
    None
):
    wiring = _wiring(_found({3: "server3.nic4", 5: "server2.nic2"}))
    assert wiring.differences == (
        "fibre ocs1.3 goes to server3.nic4, the lab file has server2.nic2",
        "fibre ocs1.5 goes to server2.nic2, the lab file has server3.nic4",
    )
    changed = [
        (a, b)
        for a, b in zip(LAB.fibres, wiring.fibres, strict=True)
        if a != b
    ]
    assert [(str(b.a), str(b.b), b.rate_bps) for _, b in changed] == [
        ("server2.nic2", "ocs1.5", 40_000_000_000),
        ("server3.nic4", "ocs1.3", 40_000_000_000),
    ]


@given(
    st.permutations(range(1, 19)),
    st.sets(st.integers(1, 18)),
    st.integers(0, 300),
)
@settings(max_examples=40)
def test_however_the_fibres_are_mixed_up_the_new_lab_file_has_them_as_they_run(
    ports: list[int], silent: set[int], further: int
) -> None:
    ends = [
        str(LAB.circuit_fibres["ocs1"][number][0]) for number in range(1, 19)
    ]
    real = {
        _port(port + further): end
        for port, end in zip(ports, ends, strict=True)
    }
    found: dict[OcsPort, str | None] = {
        _port(number): None for number in range(1, 320)
    }
    found |= {
        port: end
        for port, end in real.items()
        if port.number - further not in silent
    }
    fibres = _wiring(Findings(found, found)).fibres
    text = rewired(
        builtin_lab("ofc2022").read_text(),
        [(str(f.a), str(f.b)) for f in fibres],
    ).text
    now = expected_ends(parse_lab(text))
    assert {port: end for port, end in now.items() if found[port]} == {
        port: end for port, end in found.items() if end
    }
    # What was not found is where the lab file had it, unless somebody else is there.
    assert {
        port for port, end in now.items() if not found[port]
    } <= expected_ends(LAB).keys()


def test_a_fibre_in_another_port_and_one_that_is_missing() -> None:
    moved = _found({9: None, 200: "tor1.3"})
    wiring = _wiring(moved)
    assert wiring.differences == (
        "no frame was received at ocs1.9, the lab file has tor1.3",
        "fibre ocs1.200 goes to tor1.3, the lab file has no fibre there",
    )
    assert Endpoint("ocs1", "200") in {fibre.b for fibre in wiring.fibres}
    assert Endpoint("ocs1", "9") not in {fibre.b for fibre in wiring.fibres}
    # What is not found anywhere stays in the file: a NIC may only be broken.
    assert _wiring(_found({9: None})).fibres == LAB.fibres


def test_the_place_of_one_that_is_missing_is_given_to_who_is_there() -> None:
    wiring = _wiring(_found({9: None, 1: "tor1.3"}))
    ends = {(str(fibre.a), str(fibre.b)) for fibre in wiring.fibres}
    assert ("tor1.3", "ocs1.1") in ends
    assert ("server1.nic0", "ocs1.1") not in ends
    assert len(wiring.fibres) == len(LAB.fibres) - 1


def test_crossed_pairs_and_ends_that_only_send_or_only_hear_are_no_certain_fibres() -> (
    None
):
    found = _found()
    found.inputs |= {_port(1): "tor1.1", _port(2): "tor1.2", _port(7): None}
    found.outputs[_port(2)] = None
    wiring = _wiring(found)
    assert wiring.differences == (
        "the two fibres of ocs1.1 are crossed: tor1.1 sends into it, "
        "server1.nic0 receives from it; the lab file has server1.nic0",
        "tor1.2 sends into ocs1.2, but receives nothing from it; the lab file has server1.nic1",
        "tor1.1 receives from ocs1.7, but no sender into it is known; "
        "the lab file has tor1.1",
    )
    assert wiring.fibres == LAB.fibres


def test_who_was_not_probed_is_not_told_and_no_difference() -> None:
    found = _found({3: None, 4: None})
    why = {
        "server2.nic2": "its agent is silent",
        "server2.nic3": "its agent is silent",
    }
    wiring = found_wiring(LAB, found, BESIDE, ENDS - why.keys(), why)
    assert wiring.differences == ()
    assert [
        row.words for row in wiring.ports if row.verdict == "not told"
    ] == [
        "ocs1.3: server2.nic2 was not probed: its agent is silent",
        "ocs1.4: server2.nic3 was not probed: its agent is silent",
    ]
    assert wiring.fibres == LAB.fibres


def test_a_device_that_only_sends_lldp() -> None:
    found = _found({3: None})
    found.inputs |= {
        _port(3): "server2.nic2",
        _port(30): "leaf7 port Ethernet3",
    }
    found.outputs |= {_port(30): None}
    wiring = found_wiring(
        LAB,
        found,
        BESIDE,
        ENDS - {"server2.nic2"},
        {"server2.nic2": "no agent"},
    )
    assert wiring.differences == (
        "fibre ocs1.30 goes to leaf7 port Ethernet3, the lab file has no fibre there",
    )
    (told,) = [row for row in wiring.ports if row.port == _port(3)]
    assert (told.verdict, told.words) == (
        "as said",
        "only its LLDP was received",
    )
    assert wiring.fibres == LAB.fibres


def test_without_anybody_behind_a_switch_nothing_is_told_of_its_ports() -> (
    None
):
    wiring = _wiring(Findings())
    assert wiring.differences == ()
    assert {row.verdict for row in wiring.ports} == {"not told"}
    assert wiring.ports[0].words == (
        "ocs1.1: no known sender behind ocs1; the lab file has server1.nic0"
    )
    assert wiring.fibres == LAB.fibres


def test_light_that_brings_no_frame() -> None:
    found = _found({3: None, 4: None})
    found.inputs |= {_port(3): LIGHT, _port(4): LIGHT, _port(30): LIGHT}
    found.outputs[_port(30)] = None
    wiring = found_wiring(
        LAB,
        found,
        BESIDE,
        ENDS - {"server2.nic2"},
        {"server2.nic2": "no agent"},
    )
    words = "a signal arrives at ocs1.{}, but no frame identifies its source; the lab file {}"
    assert wiring.differences == (
        words.format(4, "has server2.nic3"),
        words.format(30, "has no fibre there"),
    )
    assert wiring.fibres == LAB.fibres


def test_fibres_beside_the_circuit_switches() -> None:
    found = _found()
    beside = frozenset({("tor1.7", "tor2.6"), ("tor2.6", "tor1.7")})
    found.inputs[_port(18)] = found.outputs[_port(18)] = "tor2.7"
    wiring = _wiring(found, beside)
    assert wiring.differences == (
        "fibre ocs1.18 goes to tor2.7, the lab file has tor2.6",
        "tor1.7 and tor2.7 do not receive each other's frames, but the lab file has a fibre "
        "between them",
        "tor1.7 and tor2.6 receive each other's frames without circuits, but the lab file has no "
        "fibre between them",
    )
    ends = {frozenset((str(fibre.a), str(fibre.b))) for fibre in wiring.fibres}
    assert {
        frozenset(("tor1.7", "tor2.6")),
        frozenset(("tor2.7", "ocs1.18")),
    } <= ends
    assert len(ends) == len(LAB.fibres)


def test_of_some_ports_only_these_are_judged() -> None:
    ports = {_port(3): "server3.nic4"}
    beside = BESIDE | {("tor1.1", "server1.nic0"), ("server1.nic0", "tor1.1")}
    wiring = found_wiring(
        LAB, Findings(dict(ports), dict(ports)), beside, ENDS, {}, whole=False
    )
    assert [row.port for row in wiring.ports] == [_port(3)]
    assert wiring.differences == (
        "fibre ocs1.3 goes to server3.nic4, the lab file has server2.nic2",
    )


def test_a_lab_without_fibres_gets_those_that_were_found() -> None:
    bare = parse_lab(
        """
name: bare
network: 10.0.0.0/24
servers: [{name: s, nics: [{name: n, address: 10.0.0.1}]}]
packet_switches: [{name: t, datapath_id: 1, ports: 2}]
circuit_switches:
  - {name: o1, driver: dry-run, address: "h:1", ports: 4}
  - {name: o2, driver: dry-run, address: "h:2", ports: 4}
"""
    )
    ends: dict[OcsPort, str | None] = {
        _port(1, "o1"): "s.n",
        _port(2, "o2"): "t.2",
        _port(3, "o1"): "o2.4",
    }
    ends |= {_port(4, "o2"): "o1.3", _port(4, "o1"): None}
    found = Findings(dict(ends), dict(ends))
    fibres = found_wiring(
        bare, found, frozenset(), {"s.n", "t.1", "t.2"}, {}
    ).fibres
    assert {frozenset((str(fibre.a), str(fibre.b))) for fibre in fibres} == {
        frozenset(("s.n", "o1.1")),
        frozenset(("t.2", "o2.2")),
        frozenset(("o1.3", "o2.4")),
    }


def test_an_end_that_is_found_twice_is_told_and_not_written() -> None:
    # Two switches with one name, say.
    found = _found({9: None, 8: "tor1.7", 200: "tor1.3", 201: "tor1.4"})
    found.twice.add("tor1.3")
    wiring = _wiring(found)
    assert wiring.doubts == (
        "tor1.4 was found at ocs1.10 and at ocs1.201: ambiguous, so no fibre is assumed",
        "tor1.7 was found at ocs1.8 and at tor2.7: ambiguous, so no fibre is assumed",
    )
    assert wiring.fibres == LAB.fibres


def test_what_is_heard_without_circuits_at_two_ports_is_not_written() -> None:
    pairs = {("tor1.7", "tor2.7"), ("server1.nic0", "tor2.7")}
    heard = frozenset(pairs | {(b, a) for a, b in pairs})
    wiring = _wiring(_found({1: None}), heard)
    assert wiring.doubts[0].startswith(
        "tor2.7 was found at server1.nic0 and at tor1.7: ambiguous, so no"
    )
    assert wiring.fibres == LAB.fibres
