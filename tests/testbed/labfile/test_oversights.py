"""What ``lab check`` warns of: nothing wrong, but likely forgotten, at its line and column."""

from pathlib import Path

import pytest

from patchlight.testbed.labfile.oversights import oversights
from patchlight.testbed.labfile.reader import builtin_lab
from tests.support.lab_files import SMALL_LAB
from tests.support.tables import mistakes, unmarked

# Below each message: what stands there, and what stands there instead; ‸ is where the mistake is.
WARNINGS = mistakes("""
server server1 has no management address
    name: server1 ⇒ name: ‸server1
NIC server2.nic1 has no fibre
    {name: nic1, ⇒ {name: ‸nic1,
no fibre at tor2
    {name: tor2, ⇒ {name: ‸tor2,
workers run as root: every user who submits
    servers: ⇒ workers: {user: ‸root}⏎servers:
driver dry-run has no emulated device
    driver: calient-tl1 ⇒ driver: ‸dry-run
""")


def warnings(tmp_path: Path, text: str) -> list[tuple[int, int, str]]:
    path = tmp_path / "lab.yaml"
    path.write_text(text)
    return [
        (found.line, found.column, found.message) for found in oversights(path)
    ]


@pytest.mark.parametrize(("good", "bad", "message"), WARNINGS)
def test_a_warning_has_its_place(
    tmp_path: Path, good: str, bad: str, message: str
) -> None:
    text, line, column = unmarked(SMALL_LAB.replace(good, bad))
    text = (
        text.replace("    management: 10.0.0.11:8471\n", "")
        if "management" in message
        else text
    )
    gone = {"nic1": "server2.nic1, ocs1.2", "tor2": "tor2.1, ocs1.4"}
    for name, ends in gone.items():
        if name in message:
            text = text.replace(f"  - {{ends: [{ends}]}}\n", "")
    found = warnings(tmp_path, text)
    assert [(*place, message in said) for *place, said in found] == [
        (line, column, True)
    ]


def test_a_name_is_not_a_lab(tmp_path: Path) -> None:
    assert warnings(tmp_path, "name: x\n") == [
        (1, 7, "the lab has a name only: expected servers or switches")
    ]


def test_good_labs_have_no_warnings(tmp_path: Path) -> None:
    assert warnings(tmp_path, SMALL_LAB) == []
    assert oversights(builtin_lab("ofc2022")) == ()
    alone = "name: x\ncircuit_switches: [{name: o, driver: polatis-tl1, address: a:1, ports: 8}]"
    assert warnings(tmp_path, alone) == []
