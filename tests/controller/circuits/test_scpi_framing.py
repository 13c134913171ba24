from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from patchlight.controller.circuits.protocols.connection import BUFFER_LIMIT, FramingError
from patchlight.controller.circuits.protocols.scpi import (
    POLATIS,
    LineFramer,
    ScpiClient,
    channels,
    units,
)
from patchlight.controller.circuits.protocols.session import Session

LINES = [
    b"Polatis,I-OST-24x24-LU1-DMHNS,002414,6.5.2.18\r\n",
    b"16,16\n",
    b"(@1,2,3),(@19,18,22)\r\n",
    b'"18"\n',
    b"(D,E,F)\n",
    b"(-29.55,-30.05)\n",
    b'0,"No error"\r\n',
    b"\xff\xfb\x01\n",
    b"\r\n",
    b'1;-222,"Data out of range; ""port"" 9",100,"x"\n',
]


def framed(chunks: list[bytes]) -> list[str]:
    framer = LineFramer()
    return [line for chunk in chunks for line in framer.feed(chunk)]


@given(
    st.lists(st.sampled_from(LINES), max_size=12).map(b"".join),
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
)
@settings(max_examples=200, deadline=None)
@example(b"".join(LINES), [1])
def test_any_cut_gives_the_same_lines(stream: bytes, lengths: list[int]) -> None:
    chunks, at, turn = [], 0, 0
    while at < len(stream):
        chunks.append(stream[at : at + lengths[turn % len(lengths)]])
        at, turn = at + len(chunks[-1]), turn + 1
    assert framed(chunks) == framed([stream])
    assert not any("\n" in line or line != line.strip() or not line for line in framed([stream]))


def test_the_parts_of_a_line() -> None:
    assert list(units('1;-222,"a;b ""c; d""",5;(@1;2);"";;')) == [
        "1",
        '-222,"a;b ""c; d""",5',
        "(@1;2)",
        '""',
    ]
    assert channels(" 1, 2,5:7,9:8") == [1, 2, 5, 6, 7, 9, 8]
    assert channels("") == []
    for wrong in ("x", "1,,2", "1:", "1:2:3", "-1", "1:999999999", "²"):
        with pytest.raises(ValueError, match=r"range|channel"):
            channels(wrong)


def read_by_hand(text: str) -> list[tuple[str, str]] | None:
    """The error queue's answer read letter by letter, as SCPI-1999 has it."""
    found, at = [], 0
    while True:
        comma = text.find(',"', at)
        code, at, words = text[at:comma], comma + 2, ""
        if comma < 0 or not code.lstrip("+-").isdigit():
            return None
        while text[at : at + 1] != '"' or text[at : at + 2] == '""':
            if at >= len(text):
                return None
            words += text[at]
            at += 2 if text[at] == '"' else 1
        if int(code) != 0:
            found.append((code, words))
        at += 1
        if at == len(text):
            return found
        if text[at] != ",":
            return None
        at += 1


@given(st.sampled_from(['-1,"', '0,"', '1,"a"",']), st.text(st.sampled_from('a",1;'), max_size=14))
@settings(max_examples=500, deadline=None)
@example("0,", '"No error"')
@example("-222,", '"Data out of range; port ""9""",100,"x"')
def test_the_error_queue_is_read_as_by_hand(head: str, tail: str) -> None:
    client = ScpiClient(Session("ocs1", "h", 1, "u", ""), POLATIS)
    assert client._errors(head + tail) == read_by_hand(head + tail)


TEXT = st.text(st.sampled_from('ab1,;:"()@- \\é'), max_size=60)


def _bare(text: str) -> str:
    return text.replace(" ", "").replace(";", "")


@given(TEXT)
@settings(max_examples=300, deadline=None)
def test_whatever_comes_is_split_or_refused(text: str) -> None:
    found = list(units(text))
    # Nothing is lost but what stands between the parts.
    assert _bare("".join(found)) == _bare(text)
    with contextlib.suppress(ValueError):
        channels(text)
    client = ScpiClient(Session("ocs1", "h", 1, "u", ""), POLATIS)
    for unit in found:
        errors = client._errors(unit)
        assert errors is None or all(int(code) != 0 for code, _ in errors)


@given(st.lists(st.one_of(st.binary(max_size=80), st.sampled_from(LINES)), max_size=60))
@settings(max_examples=300, deadline=None)
def test_noise_raises_nothing_but_our_error_and_stays_bounded(pieces: list[bytes]) -> None:
    framer = LineFramer(limit=100)
    for piece in pieces:
        try:
            framer.feed(piece)
        except FramingError:
            framer = LineFramer(limit=100)
        assert framer.buffered <= 100


def test_an_endless_line_ends_in_our_error_at_once() -> None:
    framer, began = LineFramer(), time.monotonic()
    for _ in range(BUFFER_LIMIT // 65536):
        framer.feed(b"x" * 65536)
        assert framer.buffered <= BUFFER_LIMIT
    with pytest.raises(FramingError, match="without the end of a line"):
        framer.feed(b"x")
    assert framer.buffered == 0
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("piece", ['"', "(", '""', ";", ")(", '("', '0,"a",'])
def test_long_lines_take_linear_time(piece: str) -> None:
    line, began = piece * (200_000 // len(piece)), time.monotonic()
    client = ScpiClient(Session("ocs1", "h", 1, "u", ""), POLATIS)
    for unit in units(line):
        client._errors(unit)
    assert time.monotonic() - began < 5
