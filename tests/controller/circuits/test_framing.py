"""Parsers of what devices say over TL1, SCPI and in a shell: any cut, any noise, no flood."""

import contextlib
import time
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from patchlight.controller.circuits.dialect import Session
from patchlight.controller.circuits.drivers.polatis import (
    POLATIS,
    ScpiClient,
    channels,
    units,
)
from patchlight.controller.circuits.protocols import tcp
from patchlight.controller.circuits.protocols.netconf import NetconfFramer
from patchlight.controller.circuits.protocols.ssh import (
    ShellDialect,
    ShellFramer,
)
from patchlight.controller.circuits.protocols.tl1_messages import (
    Acknowledgement,
    Autonomous,
    Message,
    Tl1Framer,
    Tl1Response,
    quote,
)
from patchlight.testbed.errors import BadInput

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
    b"\r\n\n   CALIENT01TS 16-11-07 11:20:15\r\n"
    b'*C 17 REPT ALM EQPT\r\n   "1.1.1:CR,PWR,SA;"\r\n;'
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
SESSION = [
    NOISE,
    LOGIN,
    b"agent> ",
    ALARM,
    CIRCUITS,
    EVENT,
    ACKS,
    b"\0\0",
    DENIAL,
    b"\r\nagent> ",
]
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
PROMPT = ShellDialect().prompt
SHELL = (
    "Wilkommen über SSH\r\n\x1b[1mNTM> \x1b[0mswitchstate\r\n\x1b[32mR0#A\x1b[0m U0 AL5\r\n"
    "R1#A U2 U3\r\nNTM> connect\r\nERROR: ü > #\r\nNTM> "
).encode()


# A device says nothing after its first prompt until it is asked.
FIRST = SHELL.index(b"switchstate")

CUTS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def cut(stream: bytes, lengths: list[int]) -> Iterator[bytes]:
    at = turn = 0
    while at < len(stream):
        yield stream[at : at + lengths[turn % len(lengths)]]
        at = at + lengths[turn % len(lengths)]
        turn = turn + 1


def tl1_messages(*chunks: bytes) -> list[Message]:
    framer = Tl1Framer()
    return [message for chunk in chunks for message in framer.feed(chunk)]


def scpi_lines(*chunks: bytes) -> list[str]:
    framer = tcp.LineFramer()
    return [line for chunk in chunks for line in framer.feed(chunk)]


def stays_bounded(
    framer_of: Callable[[int], tcp.Framer[Any]],
    limit: int,
    pieces: list[bytes],
) -> None:
    """Whatever comes, it raises nothing but our error."""
    framer = framer_of(limit)
    for piece in pieces:
        try:
            framer.feed(piece)
        except tcp.FramingError:
            framer = framer_of(limit)
        assert framer.buffered <= limit


# --- all of them ----------------------------------------------------------------------------


@given(st.lists(st.sampled_from(SESSION), max_size=12).map(b"".join), CUTS)
@settings(max_examples=200, deadline=None)
@example(b"".join(SESSION), [1])
def test_any_cut_of_tl1_gives_the_same_messages(
    stream: bytes, lengths: list[int]
) -> None:
    assert tl1_messages(*cut(stream, lengths)) == tl1_messages(stream)


@given(st.lists(st.sampled_from(LINES), max_size=12).map(b"".join), CUTS)
@settings(max_examples=200, deadline=None)
@example(b"".join(LINES), [1])
def test_any_cut_of_scpi_gives_the_same_lines(
    stream: bytes, lengths: list[int]
) -> None:
    lines = scpi_lines(stream)
    assert scpi_lines(*cut(stream, lengths)) == lines
    assert not any(
        "\n" in line or line != line.strip() or not line for line in lines
    )


@given(st.lists(st.integers(FIRST, len(SHELL)), max_size=12))
def test_a_shell_in_any_pieces_is_the_same(cuts: list[int]) -> None:
    framer = ShellFramer(PROMPT)
    at = 0
    found = []
    for cut in [FIRST, *sorted(cuts), len(SHELL)]:
        found += framer.feed(SHELL[at:cut])
        at = cut
    assert found[0].strip() == "Wilkommen über SSH"
    assert found[1:] == [
        "switchstate\nR0#A U0 AL5\nR1#A U2 U3",
        "connect\nERROR: ü > #",
    ]


def netconf_framer(limit: int = tcp.BUFFER_LIMIT) -> NetconfFramer:
    framer = NetconfFramer(limit)
    framer.chunked = True
    return framer


@given(CUTS, st.booleans())
def test_any_cut_of_netconf_gives_the_same_messages(
    lengths: list[int], chunked: bool
) -> None:
    framer = netconf_framer()
    framer.chunked = chunked
    stream = b"<hello>\xc3\xbc</hello>\n]]>]]><rpc-reply/>]]>]]>"
    if chunked:
        stream = b"\n#7\n<hello>\n#9\n\xc3\xbc</hello\n#2\n>\n\n##\n\n#12\n<rpc-reply/>\n##\n"
    found = [
        message
        for piece in cut(stream, lengths)
        for message in framer.feed(piece)
    ]
    assert found == ["<hello>ü</hello>\n", "<rpc-reply/>"]
    assert framer.buffered == 0


NETCONF = [
    b"\n#4\n",
    b"\n##\n",
    b"]]>]]>",
    b"\n#99999999\n",
    b"\n#0\n",
    b"<ok/>",
]


@given(
    st.lists(
        st.one_of(st.binary(max_size=80), st.sampled_from(NETCONF)),
        max_size=60,
    )
)
@settings(max_examples=200, deadline=None)
def test_noise_over_netconf_stays_bounded(pieces: list[bytes]) -> None:
    stays_bounded(NetconfFramer, 200, pieces)
    stays_bounded(netconf_framer, 200, pieces)


PIECES = st.one_of(
    st.binary(max_size=80),
    st.sampled_from(
        [
            *SESSION,
            b'"',
            b"/*",
            b"*/",
            b";",
            b">",
            b"<",
            b"\xff",
            b"\\",
            b"\r\n",
        ]
    ),
    st.sampled_from(
        [b"M  1 COMPLD\r\n", b"IP 1", b"   " * 30, b"A  1 REPT ALM\r\n"]
    ),
)


@given(st.lists(PIECES, max_size=60))
@settings(max_examples=300, deadline=None)
def test_noise_over_tl1_stays_bounded(pieces: list[bytes]) -> None:
    stays_bounded(Tl1Framer, 300, pieces)


@given(
    st.lists(
        st.one_of(st.binary(max_size=80), st.sampled_from(LINES)), max_size=60
    )
)
@settings(max_examples=300, deadline=None)
def test_noise_over_scpi_stays_bounded(pieces: list[bytes]) -> None:
    stays_bounded(tcp.LineFramer, 100, pieces)


@given(st.lists(st.binary(max_size=400), max_size=40))
@settings(max_examples=200, deadline=None)
def test_noise_in_a_shell_stays_bounded(pieces: list[bytes]) -> None:
    stays_bounded(lambda limit: ShellFramer(PROMPT, limit), 1000, pieces)


@pytest.mark.parametrize(
    "piece",
    [
        b"x",
        b"<",
        b" ",
        b"A 1 ",
        b'M  1 COMPLD\r\n"',
        b"M  1 COMPLD\r\n/*",
        b"M 1 DENY\r\n\n \n",
    ],
)
def test_an_endless_message_ends_in_our_error_at_once(piece: bytes) -> None:
    framer = Tl1Framer()
    began = time.monotonic()
    framer.feed(piece)
    chunk = piece[-1:] * 65536
    fed = 0
    while fed + len(chunk) + len(piece) <= tcp.BUFFER_LIMIT:
        framer.feed(chunk)
        fed += len(chunk)
        assert framer.buffered <= tcp.BUFFER_LIMIT
    with pytest.raises(tcp.FramingError, match="without the end of a message"):
        framer.feed(chunk * 2)
    assert framer.buffered <= tcp.BUFFER_LIMIT
    assert time.monotonic() - began < 5


def test_a_large_table_is_framed_by_blocks() -> None:
    """Also where telnet negotiates in it, and where it comes in small pieces."""
    line = b'   "1.1.1>1.1.2:SRCPORT=1.1.1,DSTPORT=1.1.2,CONNNAME=x"\r\n'
    table = LOGIN.replace(
        b"/* NOTICE", b"\xff\xfb\x01" + line * 12_000 + b"/* NOTICE"
    )
    shell = b"R0#A U0 AL5\r\n" * 50_000 + b"NTM> "
    prompted = ShellFramer(PROMPT)
    assert prompted.feed(b"NTM> ") == [""]
    reply = b"<pair/>" * 90_000
    netconf = b"\n#%d\n%b\n##\n" % (len(reply), reply)
    framed = (
        (NetconfFramer(), reply + b"]]>]]>"),
        (netconf_framer(), netconf),
    )
    for framer, stream in ((Tl1Framer(), table), (prompted, shell), *framed):
        began = time.process_time()
        found = [
            m for piece in cut(stream, [1400]) for m in framer.feed(piece)
        ]
        assert len(found) == 1
        # Once through it, not once for each piece.
        assert time.process_time() - began < 1.0


@pytest.mark.parametrize(
    ("framer", "unit"),
    [
        (tcp.LineFramer(), "line"),
        (ShellFramer(PROMPT), "reply"),
        (NetconfFramer(), "message"),
    ],
)
def test_an_endless_line_or_reply_ends_in_our_error_at_once(
    framer: tcp.Framer[str], unit: str
) -> None:
    began = time.monotonic()
    for _ in range(tcp.BUFFER_LIMIT // 65536):
        assert framer.feed(b"x" * 65536) == []
        assert framer.buffered <= tcp.BUFFER_LIMIT
    with pytest.raises(tcp.FramingError, match=f"without the end of a {unit}"):
        framer.feed(b"x")
    assert unit == "reply" or framer.buffered == 0
    assert time.monotonic() - began < 5


# --- TL1 ------------------------------------------------------------------------------------


def test_a_session_gives_its_messages() -> None:
    login, alarm, page, last, event, ip, pf, denial = tl1_messages(
        b"".join(SESSION)
    )
    assert isinstance(login, Tl1Response)
    assert (login.ctag, login.code, login.sid) == (
        "1",
        "COMPLD",
        "CALIENT01TS",
    )
    assert login.body.quoted == ("zpollock:zpollock,2",)
    assert login.body.comments[0].startswith(
        "NOTICE This is a private computer system; unauth"
    )
    assert isinstance(alarm, Autonomous)
    assert (alarm.alarm_code, alarm.atag, alarm.verb) == (
        "*C",
        "17",
        "REPT ALM EQPT",
    )
    assert alarm.body.quoted == ("1.1.1:CR,PWR,SA;",)
    assert isinstance(page, Tl1Response)
    assert page.more
    assert "CONNNAME=a;b" in page.body.quoted[0]
    assert isinstance(last, Tl1Response)
    assert not last.more
    assert last.body.quoted == (
        '2.8.5>2.3.3:SRCPORT=2.8.5,ALIAS="say \\;",AS=UMA',
    )
    assert isinstance(event, Autonomous)
    assert event.alarm_code == "A"
    assert (ip, pf) == (Acknowledgement("IP", "4"), Acknowledgement("PF", "4"))
    assert isinstance(denial, Tl1Response)
    assert denial.code == "DENY"
    assert denial.body.words == "SROF; Invalid Connection; 1.1.1>1.1.2"


def test_telnet_options_are_refused() -> None:
    framer = Tl1Framer()
    framer.feed(b"\xff\xfb\x01\xff\xfd\x03")
    assert framer.take_telnet_replies() == b"\xff\xfe\x01\xff\xfc\x03"
    assert framer.take_telnet_replies() == b""


def test_a_telnet_option_is_refused_once_however_often_it_is_offered() -> None:
    framer = Tl1Framer()
    framer.feed(b"\xff\xfb\x01" * 3)
    assert framer.take_telnet_replies() == b"\xff\xfe\x01"
    # A server that answers DONT with WILL once more: without an end, if each is answered.
    framer.feed(b"\xff\xfb\x01\xff\xfd\x01")
    assert framer.take_telnet_replies() == b"\xff\xfc\x01"


TL1_TEXT = st.text(
    st.characters(codec="ascii", exclude_characters="\0\r\n"), max_size=60
)


@given(
    st.lists(TL1_TEXT, max_size=6), st.integers(1, 999_999), st.integers(1, 50)
)
@settings(max_examples=200, deadline=None)
def test_quoted_text_comes_through_whole(
    lines: list[str], ctag: int, length: int
) -> None:
    escaped = [
        line.replace("\\", "\\\\").replace('"', '\\"') for line in lines
    ]
    body = "".join(f'   "{line}"\r\n' for line in escaped)
    stream = f"\r\n\n   SID 24-01-02 03:04:05\r\nM  {ctag} COMPLD\r\n{body};".encode()
    (message,) = tl1_messages(*cut(stream, [length]))
    assert isinstance(message, Tl1Response)
    assert message.body.quoted == tuple(lines)
    assert message.ctag == str(ctag)


@given(st.text(max_size=30))
def test_quoted_parameters_hold_no_bare_delimiter(value: str) -> None:
    try:
        text = quote(value)
    except BadInput:
        assert any(
            unicodedata.category(c) == "Cc" or c == "\ufffd" for c in value
        )
        return
    if text != value:
        assert text.startswith('"')
        assert text.endswith('"')
    else:
        assert not set(value) & set(';:,"&\\ <>')


# --- SCPI -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client() -> ScpiClient:
    return ScpiClient(Session("ocs1", "h", 1, "u", ""), POLATIS)


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
    found = []
    at = 0
    while True:
        comma = text.find(',"', at)
        code = text[at:comma]
        at = comma + 2
        words = ""
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


@given(
    head=st.sampled_from(['-1,"', '0,"', '1,"a"",']),
    tail=st.text(st.sampled_from('a",1;'), max_size=14),
)
@settings(max_examples=500, deadline=None)
@example(head="0,", tail='"No error"')
@example(head="-222,", tail='"Data out of range; port ""9""",100,"x"')
def test_the_error_queue_is_read_as_by_hand(
    client: ScpiClient, head: str, tail: str
) -> None:
    assert client._errors(head + tail) == read_by_hand(head + tail)


TEXT = st.text(st.sampled_from('ab1,;:"()@- \\é'), max_size=60)


def _bare(text: str) -> str:
    return text.replace(" ", "").replace(";", "")


@given(text=TEXT)
@settings(max_examples=300, deadline=None)
def test_whatever_comes_is_split_or_refused(
    client: ScpiClient, text: str
) -> None:
    found = list(units(text))
    # Nothing is lost but what stands between the parts.
    assert _bare("".join(found)) == _bare(text)
    with contextlib.suppress(ValueError):
        channels(text)
    for unit in found:
        errors = client._errors(unit)
        assert errors is None or all(int(code) != 0 for code, _ in errors)


@pytest.mark.parametrize("piece", ['"', "(", '""', ";", ")(", '("', '0,"a",'])
def test_long_lines_take_linear_time(client: ScpiClient, piece: str) -> None:
    line = piece * (200_000 // len(piece))
    began = time.monotonic()
    for unit in units(line):
        client._errors(unit)
    assert time.monotonic() - began < 5
