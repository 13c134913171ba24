"""Changes that nobody waits for: followed, halted and undone while a robot moves fibres."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchlight.controller.circuits.protocols.ssh import FILE_VARIABLE
from tests.support.controller_process import (
    ControllerProcess,
    OcsCommand,
    controller_process,
)
from tests.support.emulated_devices import lab_file, running
from tests.support.waiting import free_ports

BEFORE = ["1>7", "7>1"]


@pytest.fixture
def robot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ControllerProcess]:
    """A controller of an emulated Telescent that takes a second for each fibre."""
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "known_hosts"))
    lab = lab_file(
        tmp_path, driver="telescent-ssh", switching_time="1s", initial=("1-7",)
    )

    class Robot(ControllerProcess):
        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            (openflow,) = free_ports(1)
            where = f'controller: {{api: "{self.api}", openflow: "127.0.0.1:{openflow}"}}\n'
            self.lab.write_text(
                text.replace("127.0.0.1:3082", device.switch.address) + where
            )

    text = lab.read_text()
    with (
        running(tmp_path, lab, "--no-fabric") as device,
        controller_process(tmp_path, Robot) as it,
    ):
        yield it


def test_a_change_is_followed_and_halted_between_two_fibres(
    robot: ControllerProcess,
) -> None:
    ocs = OcsCommand(["--lab", str(robot.lab)])
    client = robot.client
    # So many that there is time for what comes now, also where each command takes long.
    moves = [f"{port}>{port + 14}" for port in range(3, 17)]
    begun = json.loads(
        ocs(
            "connect",
            "ocs1",
            *moves,
            "--detach",
            "--json",
            "--why",
            "new rack",
        )
    )
    number = begun["id"]
    now = begun
    assert (begun["state"], begun["why"]) == ("intent", "new rack")
    while now["progress"]["done"] < 1:
        now = client.reconfiguration(
            number, now["progress"]["step"], wait_s=20
        ).as_json
    progress = now["progress"]
    assert (progress["stage"], progress["ocs"]) == ("make", "ocs1")
    assert (progress["cross_connects"], progress["may_cancel"]) == (
        len(moves),
        True,
    )
    # One more waits for its turn, and goes before it has come.
    said = ocs("connect", "ocs1", "2:8", "--detach")
    assert f"change {number + 1} has started: waiting" in said
    assert "refused: nothing was changed: cancelled by" in ocs(
        "stop", str(number + 1)
    )
    assert [row.state for row in client.reconfigurations()] == [
        "intent",
        "refused",
    ]
    halted = ocs("stop", str(number), "--why", "wrong rack")
    assert f"change {number} rolled-back in" in halted
    assert ": cancelled by" in halted
    assert "wrong rack; the previous map is restored" in halted
    assert client.circuits()["ocs1"].map == BEFORE
    assert "rolled-back" in ocs("stop", str(number)), "it is so already"

    more = [f"{port}>{port + 6}" for port in range(2, 7)]
    number = json.loads(ocs("connect", "ocs1", *more, "--detach", "--json"))[
        "id"
    ]
    followed = ocs("watch", str(number))
    assert f"change {number} committed in" in followed
    assert (
        re.search(r"make ocs1, \d of 5 cross-connects", followed)
        or "verify" in followed
    )
    assert client.circuits()["ocs1"].map == ["1>7", *more, "7>1"]
    (line,) = ocs("watch", str(number), "--json").splitlines()
    assert json.loads(line)["state"] == "committed"
    assert "it can no longer be cancelled" in ocs("stop", str(number), code=1)
    assert "unknown change 99" in ocs("watch", "99", code=2)
    assert "exclude each other" in ocs(
        "connect", "ocs1", "3:4", "--detach", "--direct", code=2
    )
    begins = [
        event["id"]
        for event in client.events()
        if event["kind"] == "circuits-begun"
    ]
    assert begins == [1, 2, 3]
