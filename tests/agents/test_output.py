"""A worker's output: bounded, and read in parts."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from patchlight.agents.errors import AgentError
from patchlight.agents.workers import keeper

MIB = 2**20


def test_parts_join_to_the_whole_also_inside_a_character(
    tmp_path: Path,
) -> None:
    path = tmp_path / "output.log"
    text = "Längen in µm, 光, 🔦\n" * 3
    path.write_text(text)
    read = ""
    after = 0
    while (part := keeper.read_output(path, after, 5)).next > after:
        read = read + part.text
        after = part.next
        assert len(part.text.encode()) <= 5
    assert (read, after) == (text, len(text.encode()))
    assert keeper.read_output(path, 10**12, 5).text == ""
    assert keeper.read_output(tmp_path / "none", 7, 5).next == 7


def test_what_is_no_text_is_shown_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(b"\xff\xfe\x80\x80\x80\x80\x80\xe2\x82")
    assert keeper.read_output(path, 0, 4).next == 4
    assert keeper.read_output(path, 4, 5).next == 7
    assert keeper.read_output(path, 7, 5).next == 9


def test_a_long_output_loses_its_beginning_and_keeps_its_offsets(
    tmp_path: Path,
) -> None:
    path = tmp_path / "output.log"
    line = b"0123456789abcde\n"
    with path.open("ab") as program:
        program.write(line * (MIB // len(line)) * 70)
        program.flush()
        keeper.bound_output(path)
        program.write(b"the end\n")  # whoever writes notices nothing
    size = 70 * MIB + 8
    assert path.stat().st_size == size
    assert path.stat().st_blocks * 512 <= 33 * MIB
    part = keeper.read_output(path, 100, 64)
    assert part.offset >= size - keeper.MOST_KEPT_BYTES // 2 - 8 - 4096
    note, rest = part.text.split("\n", 1)
    assert note == f"[{part.offset - 100} bytes of output were dropped]"
    assert rest == (line * 4).decode()
    assert keeper.last_lines(path)[-2:] == ("0123456789abcde", "the end")
    keeper.bound_output(path)
    assert keeper.read_output(path, 100, 64) == part


def test_what_a_program_puts_in_the_way_is_not_followed(
    tmp_path: Path,
) -> None:
    link = tmp_path / "link"
    pipe = tmp_path / "pipe"
    link.symlink_to("/etc/passwd")
    os.mkfifo(pipe)
    for path in (link, pipe):
        with pytest.raises(AgentError, match="reading the output"):
            keeper.read_output(path, 0, 100)
        assert keeper.last_lines(path) == ()


@pytest.mark.parametrize("put", [Path.symlink_to, Path.hardlink_to])
def test_a_gate_that_a_program_has_replaced_is_not_written_to(
    put: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    others = tmp_path / "others"
    others.write_text("kept")
    put(tmp_path / keeper.START, others)
    assert not keeper.open_gate(tmp_path)
    assert others.read_text() == "kept"


def test_an_exit_code_that_is_no_file_is_not_waited_for(
    tmp_path: Path,
) -> None:
    path = tmp_path / keeper.EXIT
    os.mkfifo(path)
    assert keeper.exit_code(tmp_path) == (255, f"{path}: not a plain file")
    path.unlink()
    assert keeper.exit_code(tmp_path) == (
        255,
        f"{path}: No such file or directory",
    )
    for text, code in (("3\n", 3), ("255\n", 255), ("", 137), ("3", 137)):
        path.write_text(text)
        assert keeper.exit_code(tmp_path) == (code, "")
    for text in ("256\n", "-1\n", " 0\n", "0\n0\n", "no\n", "0" * 100):
        path.write_text(text)
        code, why = keeper.exit_code(tmp_path)
        assert (code, str(path) in why) == (255, True), text
