"""``patchlight ocs`` and the API on wavelength switches: the same commands, with channels."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.controller_process import ControllerProcess, OcsCommand
from tests.support.waiting import free_ports
from tests.support.wss_bench import LAB_FILE, START

# One controller, whose dry-run switches remember while it runs.
pytestmark = pytest.mark.xdist_group("ocs of wavelength switches")

CIRCUIT_SWITCH = """
circuit_switches:
  - {name: ocs1, driver: dry-run, address: "127.0.0.1:3", ports: 4}
"""


@pytest.fixture(scope="module")
def controller(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ControllerProcess]:
    process = ControllerProcess(tmp_path_factory.mktemp("coloured"))
    (openflow,) = free_ports(1)
    where = f"controller: {{api: '{process.api}', openflow: '127.0.0.1:{openflow}'}}\n"
    process.lab.write_text(LAB_FILE + CIRCUIT_SWITCH + where)
    process.start()
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture
def ocs(controller: ControllerProcess) -> OcsCommand:
    """The commands, on the maps that the lab starts with."""
    wanted = {name: START[name].texts for name in START}
    controller.client.reconfigure(wanted, only=True)
    return OcsCommand(["--lab", str(controller.lab)])


def test_a_channel_is_connected_and_nothing_else_moves(
    ocs: OcsCommand, controller: ControllerProcess
) -> None:
    shown = ocs("connect", "wss1", "2>4@193.150", "--dry-run")
    assert shown.splitlines() == [
        "wss1 - 2>3@193.150",
        "wss1 + 2>4@193.150",
        "link down: server2.nic0:server4.nic0",
    ]
    assert "committed" in ocs(
        "connect", "wss1", "server2.nic0:4@193.150-2dB", "--one-way"
    )
    assert json.loads(ocs("show", "wss1", "--json"))["wss1"]["map"] == [
        "1>3@193.100",
        "2>4@193.150-2dB",
        "3>1@193.100",
        "3>2@193.150",
    ]
    row = next(
        line for line in ocs("show", "wss1").splitlines() if "2>4" in line
    )
    assert row.split() == ["wss1", "2>4@193.150-2dB", "server2.nic0", "star.1"]
    # The other way still stands; a link takes both.
    assert [(link.a, link.b) for link in controller.client.links()] == [
        ("server1.nic0", "server3.nic0")
    ]
    assert [each.as_json for each in controller.client.links()[0].via] == [
        {"ocs": "wss1", "inp": 1, "out": 3, "channel": "193.100"},
        {"ocs": "wss2", "inp": 3, "out": 1, "channel": "193.100"},
    ]
    assert "wss1 −1 +1" in ocs("history", "wss1")
    ocs("rollback", str(controller.client.reconfigurations(1)[0].id))
    assert len(controller.client.links()) == 2


def test_one_channel_of_a_port_is_freed_or_locked(ocs: OcsCommand) -> None:
    ocs("lock", "wss1.3@193.150", "--why", "measuring")
    assert "wss1.3@193.150" in ocs("lock")
    assert "wss1.3@193.150 is locked by" in ocs(
        "disconnect", "wss1", "3", code=1
    )
    assert "3@193.150 locked by" in ocs("show", "wss1", "--wide")
    ocs("disconnect", "wss1", "3@193.100")
    assert json.loads(ocs("show", "wss1", "--json"))["wss1"]["map"] == [
        "2>3@193.150",
        "3>2@193.150",
    ]
    ocs("lock", "--release", "wss1.3@193.150")
    assert "2>3@193.150" in ocs("show", "--power", "wss1.2@193.150")


def test_maps_of_both_kinds_are_in_one_file(
    ocs: OcsCommand, tmp_path: Path
) -> None:
    file = tmp_path / "wanted.yaml"
    file.write_text(
        "wss1: [1>2@193.100, 2>1@193.150]\nwss2: []\nocs1: [1-2]\n"
    )
    ocs("apply", str(file), "--only", "--yes", "--yes")
    ocs("save", "evening")
    maps = {
        name: row["map"]
        for name, row in json.loads(ocs("show", "--json")).items()
    }
    assert maps == {
        "ocs1": ["1>2", "2>1"],
        "wss1": ["1>2@193.100", "2>1@193.150"],
        "wss2": [],
    }
    ocs("connect", "wss2", "1:2@193.200")
    ocs("apply", "evening", "--yes")
    assert json.loads(ocs("show", "wss2", "--json"))["wss2"]["map"] == []
    file.write_text(
        "wss1: [1>2@193.100, 3>2@193.100, 3>1@193.150]\nocs1: [1-2@193.100]\n"
    )
    wrong = ocs("apply", str(file), code=2)
    assert (
        ":1:21: output port 2 is used twice: 1>2@193.100 and 3>2@193.100"
        in wrong
    )
    assert (
        ":2:8: '1-2@193.100' names a channel, but ocs1 is a circuit switch"
        in wrong
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("connect", "wss1", "1:2"),
            "'1-2' names no channel, but wss1 is a wavelength switch",
        ),
        (("connect", "wss1", "1:2@193.125"), "off the grid of 50 GHz"),
        (("connect", "wss1", "1:2@violet"), "'violet' is not a channel"),
        (("connect", "ocs1", "1:2@193.100"), "ocs1 is a circuit switch"),
        (("disconnect", "ocs1", "1@193.100"), "expected 1"),
        (
            ("lock", "wss1.9@193.100", "--why", "x"),
            "wss1 has ports 1–4, not 9",
        ),
        (
            ("connect", "star", "1:2@193.100"),
            "'star' is not a pair A:B and not an OCS",
        ),
    ],
)
def test_an_entry_of_the_wrong_kind_is_bad_input(
    ocs: OcsCommand, words: tuple[str, ...], message: str
) -> None:
    assert message in ocs(*words, code=2)


def test_the_api_speaks_of_channels(
    ocs: OcsCommand, controller: ControllerProcess
) -> None:
    client = controller.client
    rows = {row.name: row for row in client.circuit_switches()}
    assert (rows["wss1"].grid, rows["ocs1"].grid) == (
        "50GHz",
        None,
    )
    planned = client.preview_reconfiguration(
        {}, disconnect={"wss2": [1, "2@193.150"]}
    )
    assert len(planned.changes["wss2"].breaks) == 4
    refused = client.preview_reconfiguration(
        {"wss1": ["1>4@193.100"], "wss2": ["1>4@193.100"]}
    )
    (objection,) = refused.objections
    assert "server1.nic0 (193.100) and server3.nic0 (193.100)" in objection
