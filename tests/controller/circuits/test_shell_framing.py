from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchlight.controller.circuits.protocols.connection import BUFFER_LIMIT, FramingError
from patchlight.controller.circuits.protocols.ssh.shell import ShellDialect, ShellFramer

PROMPT = ShellDialect().prompt
SESSION = (
    "Wilkommen über SSH\r\n\x1b[1mNTM> \x1b[0mswitchstate\r\n\x1b[32mR0#A\x1b[0m U0 AL5\r\n"
    "R1#A U2 U3\r\nNTM> connect\r\nERROR: ü > #\r\nNTM> "
).encode()


# A device says nothing after its first prompt until it is asked.
FIRST = SESSION.index(b"switchstate")


@given(st.lists(st.integers(FIRST, len(SESSION)), max_size=12))
def test_a_session_in_any_pieces_is_the_same(cuts: list[int]) -> None:
    framer, at, found = ShellFramer(PROMPT), 0, []
    for cut in [FIRST, *sorted(cuts), len(SESSION)]:
        found += framer.feed(SESSION[at:cut])
        at = cut
    assert found[0].strip() == "Wilkommen über SSH"
    assert found[1:] == ["switchstate\nR0#A U0 AL5\nR1#A U2 U3", "connect\nERROR: ü > #"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=400), max_size=40))
def test_random_bytes_stay_within_the_bound(parts: list[bytes]) -> None:
    framer = ShellFramer(PROMPT, limit=1000)
    with contextlib.suppress(FramingError):
        for part in parts:
            framer.feed(part)
            assert len(framer._text) <= 1000


def test_what_never_ends_is_given_up() -> None:
    framer = ShellFramer(PROMPT)
    for _ in range(BUFFER_LIMIT // 65536):
        assert framer.feed(b"x" * 65536) == []
    with pytest.raises(FramingError, match="without the end of a reply"):
        framer.feed(b"x")
