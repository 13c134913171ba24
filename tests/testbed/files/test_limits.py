"""Files that never end, repeat keys, nest or explode: refused at a limit, with words."""

import os
from pathlib import Path

import pytest

from patchlight.testbed.errors import BadInput, FileError
from patchlight.testbed.graphs.files import JsonText
from patchlight.testbed.io.reader import MOST_ISSUES, FileIssues, read_text
from patchlight.testbed.labfile.reader import LabFileError, parse_lab, read_lab

START = "name: x\nnetwork: 10.0.0.0/8\n"


def test_files_that_never_end_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(20 << 30)
    for path, message in (
        ("/dev/zero", "it is a device"),
        (tmp_path / "fifo", "it is a named pipe"),
        (tmp_path / "huge.yaml", "it is longer than 64 MiB"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(LabFileError, match=message):
            read_lab(path)


def test_what_a_shell_pipes_in_is_read() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"words\n")
    os.close(writing)
    try:
        assert read_text(f"/dev/fd/{reading}") == "words\n"
    finally:
        os.close(reading)


def test_a_file_of_too_many_mistakes_is_not_read_on() -> None:
    text = START + "".join(f"key{i}: 1\n" for i in range(20_000))
    with pytest.raises(LabFileError) as caught:
        parse_lab(text)
    assert len(caught.value.issues) == MOST_ISSUES + 1
    last = caught.value.issues[-1].message
    assert (
        last == "more than 1,000 mistakes: the rest of the file was not read"
    )


def test_aliases_that_explode_are_refused() -> None:
    many = ", ".join(["*n"] * 1500)
    text = (
        f"{START}servers:\n- &s {{name: a, nics: [&n {{name: n}}, {many}]}}\n"
        + "- *s\n" * 1500
    )
    with pytest.raises(
        LabFileError, match="aliases repeat more than 100,000 values"
    ):
        parse_lab(text)


def test_an_unknown_driver_is_a_mistake_that_names_the_known_ones() -> None:
    switch = "{name: o, driver: calient-tl2, address: 'h:1', ports: 8}"
    with pytest.raises(LabFileError) as caught:
        parse_lab(f"name: x\ncircuit_switches: [{switch}]")
    message = str(caught.value)
    assert (
        "unknown driver 'calient-tl2': did you mean 'calient-tl1'?" in message
    )
    assert "polatis-scpi" in message


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ('{"a": 1,\n "a": 2}', ["f:2:2: duplicate key 'a', first on line 1"]),
        (
            '[{"a": {"b": 1, "b": 2}},\n{"a": 3}]',
            ["f:1:17: duplicate key 'b'"],
        ),
        (
            '{"a": [1], "a": [2], "\\u0061": 3}',
            ["f:1:12: duplicate key 'a'", "f:1:22: duplicate key 'a'"],
        ),
    ],
)
def test_keys_that_stand_twice_in_json_are_mistakes(
    text: str, places: list[str]
) -> None:
    with pytest.raises(FileError) as caught:
        JsonText(text, FileIssues("f")).parse()
    assert len(caught.value.issues) == len(places)
    assert all(place in str(caught.value) for place in places)


def test_a_port_that_leads_to_itself_both_ways_is_a_mistake() -> None:
    from patchlight.testbed.lab.portmap import PortMap

    with pytest.raises(BadInput, match="'3-3' connects a port to itself"):
        PortMap.parse(["3-3"])
