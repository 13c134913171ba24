"""Connections of switches that the lab does not have: each is counted, few are told of."""

from patchlight.controller.packet_switches.openflow.client import (
    UnknownSwitches,
)


def test_the_first_is_told_at_once_and_the_others_together() -> None:
    unknown = UnknownSwitches()
    first = unknown.connected(0x99, "10.0.0.7:4000", 100.0)
    assert first is not None
    assert (first["datapath_id"], first["address"], first["connections"]) == (
        0x99,
        "10.0.0.7:4000",
        1,
    )
    told = [
        unknown.connected(0x99, f"10.0.0.7:{port}", 101.0)
        for port in range(200)
    ]
    assert told == [None] * 200
    later = unknown.connected(0x98, "10.0.0.8:1", 161.0)
    assert later is not None
    assert later["connections"] == 201
    assert later["switches"] == [
        {"datapath_id": 0x99, "host": "10.0.0.7", "connections": 200},
        {"datapath_id": 0x98, "host": "10.0.0.8", "connections": 1},
    ]
    assert unknown.connections == 202


def test_who_takes_another_name_each_time_fills_nothing() -> None:
    unknown = UnknownSwitches()
    for number in range(10_000):
        unknown.connected(number, f"10.0.0.7:{number}", 1.0)
    event = unknown.connected(1, "10.0.0.7:1", 100.0)
    assert event is not None
    assert event["connections"] == 10_000
    assert len(event["switches"]) == 8
