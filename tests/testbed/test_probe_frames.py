"""Probe frames and LLDP, as bytes."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from patchlight.testbed.wire.probe_frames import (
    ETHERTYPE,
    LldpNeighbour,
    lldp_neighbour,
    probe_frame,
    probe_source,
)


def _field(number: int, value: bytes) -> bytes:
    return struct.pack("!H", number << 9 | len(value)) + value


def _lldp(*fields: bytes) -> bytes:
    head = bytes.fromhex("0180c200000e0200000000aa88cc")
    return (head + b"".join(fields) + b"\0\0").ljust(60, b"\0")


CHASSIS = _field(1, b"\x04" + bytes.fromhex("0200000000aa"))


def test_a_probe_says_who_sent_it_to_the_search_it_is_of() -> None:
    frame = probe_frame("server1.nic0", "ab-7", "02:00:00:00:00:05")
    assert len(frame) == 60
    assert frame[:6].hex(":") == "01:80:c2:00:00:0e"
    assert frame[6:12].hex(":") == "02:00:00:00:00:05"
    assert int.from_bytes(frame[12:14], "big") == ETHERTYPE
    assert probe_source(frame, "ab-7") == "server1.nic0"
    assert probe_source(frame, "ab-8") is None
    # Cut in the middle of the name.
    assert probe_source(frame[:40], "ab-7") is None


def test_a_longer_name_makes_a_longer_frame() -> None:
    name = "s" * 60 + ".nic0"
    assert probe_source(probe_frame(name, "t"), "t") == name


def test_lldp_says_the_device_and_its_port() -> None:
    named = _lldp(
        CHASSIS,
        _field(2, b"\x05Ethernet3"),
        _field(3, b"\0x"),
        _field(5, b"leaf7"),
    )
    assert lldp_neighbour(named) == LldpNeighbour("leaf7", "Ethernet3")
    assert str(LldpNeighbour("leaf7", "Ethernet3")) == "leaf7 port Ethernet3"
    port = _field(2, b"\x03" + bytes.fromhex("0200000000bb"))
    assert lldp_neighbour(_lldp(CHASSIS, port)) == LldpNeighbour(
        "02:00:00:00:00:aa", "02:00:00:00:00:bb"
    )


def test_what_no_terminal_should_get_is_shown_as_numbers() -> None:
    frame = _lldp(CHASSIS, _field(2, b"\x05\x1b[2J"), _field(5, b"leaf\n7"))
    assert lldp_neighbour(frame) == LldpNeighbour(
        "6c:65:61:66:0a:37", "1b:5b:32:4a"
    )


def test_other_frames_are_neither() -> None:
    assert lldp_neighbour(probe_frame("tor1.3", "t")) is None
    assert probe_source(_lldp(CHASSIS, _field(2, b"\x05e")), "t") is None
    assert lldp_neighbour(_lldp(CHASSIS)) is None


@given(st.binary(max_size=200))
def test_any_bytes_at_all_are_taken(noise: bytes) -> None:
    for kind in (b"\x88\xb5", b"\x88\xcc"):
        frame = bytes(12) + kind + noise
        assert probe_source(frame, "t") is None or noise.startswith(
            b"patchlight-probe"
        )
        lldp_neighbour(frame)
