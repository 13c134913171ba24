"""Lab files that are good, where they are found, and files that cannot be read."""

from pathlib import Path

import pytest

from patchlight.testbed.errors import BadInput
from patchlight.testbed.labfile.reader import (
    LabFileError,
    builtin_labs,
    find_lab,
    load_lab,
    parse_lab,
    read_lab,
)
from patchlight.testbed.labfile.writer import write_lab
from tests.support.lab_files import SMALL_LAB


def test_the_good_file_is_good() -> None:
    lab = parse_lab(SMALL_LAB)
    assert lab.scale == 1000
    assert lab.servers[1].nics[0].mac == "02:00:00:00:00:01"
    assert lab.servers[0].nics[0].mac == "02:4c:c0:a8:0a:0b"
    assert lab.circuit_switch("ocs1").initial.texts == ("1-3", "2>4")
    assert lab.packet_switches[1].launch_power_dbm == -3


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(LabFileError, match=f"{path}:1:1: cannot be read .{reason}"):
            read_lab(path)
    with pytest.raises(LabFileError, match="cannot be read"):
        read_lab("a\0b")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"name: x\nnetwork: \xff\n")
    with pytest.raises(LabFileError, match=r"binary\.yaml:2:10: byte 0xff is not UTF-8"):
        read_lab(binary)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_text(SMALL_LAB, encoding="utf-8-sig")
    assert read_lab(path) == parse_lab(SMALL_LAB)


def test_words_that_yaml_guesses_about_are_just_words() -> None:
    lab = parse_lab(SMALL_LAB.replace("server1", "on").replace("server2", "no"))
    assert [server.name for server in lab.servers] == ["on", "no"]


def test_a_lab_is_found_by_path_or_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "ofc2022" in builtin_labs()
    (tmp_path / "ofc2022").mkdir()  # A folder of that name is not a lab file.
    assert read_lab(find_lab("ofc2022")).name == "ofc2022"
    (tmp_path / "mine.yaml").write_text(SMALL_LAB)
    assert load_lab("mine.yaml").name == "small"
    with pytest.raises(BadInput, match=r"no lab file at 'ofc2023'.*did you mean 'ofc2022'"):
        find_lab("ofc2023")
    with pytest.raises(BadInput, match="no lab file"):
        find_lab("a\0b")


@pytest.mark.parametrize("name", builtin_labs())
def test_every_built_in_lab_is_good(name: str) -> None:
    assert load_lab(name).name == name


LONE_SWITCH = """
name: bench
circuit_switches: [{name: ocs1, driver: polatis-scpi, address: "127.0.0.1:5025", ports: 32}]
"""


def test_a_lab_may_be_one_switch_alone() -> None:
    lab = parse_lab(LONE_SWITCH)
    assert [switch.name for switch in lab.circuit_switches] == ["ocs1"]
    assert lab.hosts == ()
    assert parse_lab(write_lab(lab)) == lab
