"""Lab files whose fibres are put right: text, comments and order stay."""

import pytest

from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile.reader import (
    LabFileError,
    builtin_lab,
    parse_lab,
)
from patchlight.testbed.labfile.writer import rewired

TEXT = builtin_lab("ofc2022").read_text()
LAB = parse_lab(TEXT)


def _pairs(lab: Lab) -> list[tuple[str, str]]:
    return [(str(fibre.a), str(fibre.b)) for fibre in lab.fibres]


def test_the_same_fibres_change_nothing() -> None:
    assert rewired(TEXT, _pairs(LAB)).text == TEXT


def test_two_swapped_fibres_change_two_lines() -> None:
    swapped = {
        ("server2.nic2", "ocs1.3"): ("server2.nic2", "ocs1.5"),
        ("server3.nic4", "ocs1.5"): ("server3.nic4", "ocs1.3"),
    }
    fibres = [swapped.get(pair, pair) for pair in _pairs(LAB)]
    new = rewired(TEXT, fibres)
    changed = [
        (old, now)
        for old, now in zip(
            TEXT.splitlines(), new.text.splitlines(), strict=True
        )
        if old != now
    ]
    assert changed == [
        (
            "  - {ends: [server2.nic2, ocs1.3], rate: 40Gbps}",
            "  - {ends: [server2.nic2, ocs1.5], rate: 40Gbps}",
        ),
        (
            "  - {ends: [server3.nic4, ocs1.5], rate: 40Gbps}",
            "  - {ends: [server3.nic4, ocs1.3], rate: 40Gbps}",
        ),
    ]
    assert new.keeps_comments
    assert _pairs(parse_lab(new.text)) == fibres


def test_one_goes_and_one_comes() -> None:
    fibres = [
        pair
        for pair in _pairs(LAB)
        if pair[0] not in ("server4.nic5", "tor1.7")
    ]
    new = rewired(
        TEXT, [*fibres, ("tor1.7", "ocs1.40"), ("tor2.7", "ocs1.41")]
    )
    assert new.keeps_comments
    assert "  - {ends: [server4.nic5" not in new.text
    assert new.text.endswith(
        "  - {ends: [tor1.7, ocs1.40], rate: 10Gbps}\n  - {ends: [tor2.7, ocs1.41]}\n"
    )


def test_a_file_that_writes_several_fibres_on_a_line_is_written_anew() -> None:
    text = """
name: short  # a comment
network: 10.0.0.0/24
servers:
  - {name: "s[1-2]", nics: [{name: n, address: "10.0.0.[1-2]"}]}
circuit_switches: [{name: o, driver: dry-run, address: "h:1", ports: 4}]
fibres:
  - {ends: ["s[1-2].n", "o.[1-2]"], loss: 0.5dB}
"""
    new = rewired(text, [("s1.n", "o.2"), ("s2.n", "o.1")])
    assert not new.keeps_comments
    lab = parse_lab(new.text)
    assert _pairs(lab) == [("s1.n", "o.2"), ("s2.n", "o.1")]
    assert {fibre.loss_db for fibre in lab.fibres} == {0.5}


def test_quotes_stay_quotes() -> None:
    text = TEXT.replace("[server2.nic2, ocs1.3]", '["server2.nic2", "ocs1.3"]')
    fibres = [
        ("server2.nic2", "ocs1.50") if a == "server2.nic2" else (a, b)
        for a, b in _pairs(LAB)
    ]
    assert '["server2.nic2", "ocs1.50"]' in rewired(text, fibres).text


def test_what_is_no_lab_file_is_refused() -> None:
    with pytest.raises(LabFileError):
        rewired("name: [", [])
