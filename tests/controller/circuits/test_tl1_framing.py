from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from patchlight.controller.circuits.protocols.connection import BUFFER_LIMIT, FramingError
from patchlight.controller.circuits.protocols.tl1.framing import Framer
from patchlight.controller.circuits.protocols.tl1.messages import (
    Acknowledgement,
    Autonomous,
    Message,
    Response,
    quote,
)

# As captured from an S162 by a third-party driver.
LOGIN = (
    b"\r\n\n   CALIENT01TS 16-10-31 15:01:34\r\nM  1 COMPLD\r\n"
    b'   "zpollock:zpollock,2"\r\n'
    b"   /* NOTICE This is a private computer system; unauthorized use > prosecution */\r\n;"
)
CIRCUITS = (
    b"\r\n\n   CALIENT01TS 16-11-07 11:20:14\r\nM  2 COMPLD\r\n"
    b'   "2.3.6-3.2.5:SRCPORT=2.3.6,DSTPORT=3.2.5,GRPNAME=D,CONNNAME=a;b,CONNTYPE=2WAY"\r\n>'
    b"\r\n\n   CALIENT01TS 16-11-07 11:20:14\r\nM  2 COMPLD\r\n"
    b'   "2.8.5>2.3.3:SRCPORT=2.8.5,ALIAS=\\"say \\\\;\\",AS=UMA"\r\n;'
)
ALARM = (
    b'\r\n\n   CALIENT01TS 16-11-07 11:20:15\r\n*C 17 REPT ALM EQPT\r\n   "1.1.1:CR,PWR,SA;"\r\n;'
)
EVENT = b"\r\n\n   CALIENT01TS 16-11-07 11:20:15\r\nA  18 REPT DBCHG\r\n;"
DENIAL = (
    b"\r\n\n   CALIENT01TS 16-11-07 11:20:16\r\nM  3 DENY\r\n   SROF\r\n"
    b"   /* Invalid Connection; 1.1.1>1.1.2 */\r\n;"
)
ACKS = b"\r\nIP 4\r\n<\r\nPF 4\r\n>"
NOISE = (
    b"\xff\xfb\x01\xff\xfd\x03\xff\xfa\x18\x00;\xff\xf0Welcome; use > at your own risk\r\nagent> "
    b"ENT-CRS-BULK::1.2.4>5.8.6&1.1.1>1.1.1:2:;\r\n"
)
SESSION = [NOISE, LOGIN, b"agent> ", ALARM, CIRCUITS, EVENT, ACKS, b"\0\0", DENIAL, b"\r\nagent> "]


def framed(chunks: list[bytes]) -> list[Message]:
    framer = Framer()
    return [message for chunk in chunks for message in framer.feed(chunk)]


def test_a_session_gives_its_messages() -> None:
    login, alarm, page, last, event, ip, pf, denial = framed([b"".join(SESSION)])
    assert isinstance(login, Response)
    assert (login.ctag, login.code, login.sid) == ("1", "COMPLD", "CALIENT01TS")
    assert login.body.quoted == ("zpollock:zpollock,2",)
    assert login.body.comments[0].startswith("NOTICE This is a private computer system; unauth")
    assert isinstance(alarm, Autonomous)
    assert (alarm.alarm_code, alarm.atag, alarm.verb) == ("*C", "17", "REPT ALM EQPT")
    assert alarm.body.quoted == ("1.1.1:CR,PWR,SA;",)
    assert isinstance(page, Response)
    assert page.more
    assert "CONNNAME=a;b" in page.body.quoted[0]
    assert isinstance(last, Response)
    assert not last.more
    assert last.body.quoted == ('2.8.5>2.3.3:SRCPORT=2.8.5,ALIAS="say \\;",AS=UMA',)
    assert isinstance(event, Autonomous)
    assert event.alarm_code == "A"
    assert (ip, pf) == (Acknowledgement("IP", "4"), Acknowledgement("PF", "4"))
    assert isinstance(denial, Response)
    assert denial.code == "DENY"
    assert denial.body.words == "SROF; Invalid Connection; 1.1.1>1.1.2"


def test_telnet_options_are_refused() -> None:
    framer = Framer()
    framer.feed(b"\xff\xfb\x01\xff\xfd\x03")
    assert framer.take_telnet_replies() == b"\xff\xfe\x01\xff\xfc\x03"
    assert framer.take_telnet_replies() == b""


@given(
    st.lists(st.sampled_from(SESSION), max_size=12).map(b"".join),
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
)
@settings(max_examples=200, deadline=None)
@example(b"".join(SESSION), [1])
def test_any_cut_gives_the_same_messages(stream: bytes, lengths: list[int]) -> None:
    chunks, at, turn = [], 0, 0
    while at < len(stream):
        chunks.append(stream[at : at + lengths[turn % len(lengths)]])
        at, turn = at + len(chunks[-1]), turn + 1
    assert framed(chunks) == framed([stream])


TEXT = st.text(st.characters(codec="ascii", exclude_characters="\0\r\n"), max_size=60)


@given(st.lists(TEXT, max_size=6), st.integers(1, 999_999), st.integers(1, 50))
@settings(max_examples=200, deadline=None)
def test_quoted_text_comes_through_whole(lines: list[str], ctag: int, cut: int) -> None:
    escaped = [line.replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    body = "".join(f'   "{line}"\r\n' for line in escaped)
    stream = f"\r\n\n   SID 24-01-02 03:04:05\r\nM  {ctag} COMPLD\r\n{body};".encode()
    (message,) = framed([stream[at : at + cut] for at in range(0, len(stream), cut)])
    assert isinstance(message, Response)
    assert message.body.quoted == tuple(lines)
    assert message.ctag == str(ctag)


PIECES = st.one_of(
    st.binary(max_size=80),
    st.sampled_from([*SESSION, b'"', b"/*", b"*/", b";", b">", b"<", b"\xff", b"\\", b"\r\n"]),
    st.sampled_from([b"M  1 COMPLD\r\n", b"IP 1", b"   " * 30, b"A  1 REPT ALM\r\n"]),
)


@given(st.lists(PIECES, max_size=60))
@settings(max_examples=300, deadline=None)
def test_noise_raises_nothing_but_our_error_and_stays_bounded(pieces: list[bytes]) -> None:
    framer = Framer(limit=300)
    for piece in pieces:
        try:
            framer.feed(piece)
        except FramingError:
            framer = Framer(limit=300)
        assert framer.buffered <= 300


@pytest.mark.parametrize(
    "piece",
    [b"x", b"<", b" ", b"A 1 ", b'M  1 COMPLD\r\n"', b"M  1 COMPLD\r\n/*", b"M 1 DENY\r\n\n \n"],
)
def test_an_endless_message_ends_in_our_error_at_once(piece: bytes) -> None:
    framer, began = Framer(), time.monotonic()
    framer.feed(piece)
    chunk, fed = piece[-1:] * 65536, 0
    while fed + len(chunk) + len(piece) <= BUFFER_LIMIT:
        framer.feed(chunk)
        fed += len(chunk)
        assert framer.buffered <= BUFFER_LIMIT
    with pytest.raises(FramingError, match="without the end of a message"):
        framer.feed(chunk * 2)
    assert framer.buffered <= BUFFER_LIMIT
    assert time.monotonic() - began < 5


@given(st.text(max_size=30))
def test_quoted_parameters_hold_no_bare_delimiter(value: str) -> None:
    text = quote(value)
    if text != value:
        assert text.startswith('"')
        assert text.endswith('"')
    else:
        assert not set(value) & set(';:,"&\\ <>')
