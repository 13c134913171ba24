"""Errors say why something failed, also those whose own text is empty."""

import ast
import asyncio
import ssl
from collections.abc import Iterator

import httpx
import pytest

from patchlight.agents.training import task
from patchlight.testbed.errors import PatchlightError, in_words, reason
from tests.support.house import ROOT

ROOMS = "agents", "controller", "deploy", "emulation", "patchlight", "testbed"
# Of these, some have no text: time-outs, cancelled calls, closed connections.
MAY_BE_EMPTY = {
    "BaseException",
    "CancelledError",
    "ConnectionError",
    "EOFError",
    "Exception",
    "HTTPError",
    "HTTPException",
    "OSError",
    "RequestException",
    "SSHException",
    "SSLError",
    "TimeoutError",
    "TransportError",
    "_BROKEN",
    "_REFUSED",
}


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        asyncio.CancelledError(),
        OSError(),
        AssertionError(),
        EOFError(),
        httpx.ReadTimeout(""),
        ssl.SSLError(),
        KeyError(),
    ],
)
def test_no_reason_is_empty(error: BaseException) -> None:
    name = type(error).__name__
    assert name in reason(error)
    assert name in task.reason(error)
    assert in_words(error) == f"unexpected {name}"


def test_a_text_is_taken_as_it_is() -> None:
    assert reason(ValueError(" it is late\n")) == "it is late"
    assert in_words(ValueError("late")) == "unexpected ValueError: late"
    assert in_words(PatchlightError("late", hint="wait")) == "late"
    refused = ConnectionRefusedError(111, "Connection refused")
    assert reason(refused) == "[Errno 111] Connection refused"
    assert task.reason(refused) == "Connection refused"


def _kinds(caught: ast.expr | None) -> set[str]:
    if caught is None:
        return {"BaseException"}
    parts = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return {ast.unparse(part).lstrip("*").rpartition(".")[2] for part in parts}


def _bare(handler: ast.ExceptHandler) -> Iterator[ast.AST]:
    """Where a handler makes text of its error alone, without ``reason`` or another way out."""

    def is_error(node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id == handler.name

    for node in ast.walk(handler):
        if isinstance(node, ast.JoinedStr):
            with_type = f"type({handler.name}).__name__" in ast.unparse(node)
            for part in node.values:
                if isinstance(
                    part, ast.FormattedValue
                ) and part.conversion != ord("r"):
                    value = part.value
                    first = (
                        value.values[0]
                        if isinstance(value, ast.BoolOp)
                        else value
                    )
                    if (
                        is_error(first) and not with_type
                    ):  # an exception is always true
                        yield node
    alone = {
        id(each.values[0])
        for each in ast.walk(handler)
        if isinstance(each, ast.BoolOp) and isinstance(each.op, ast.Or)
    }
    for node in ast.walk(handler):
        is_text = (
            isinstance(node, ast.Call) and ast.unparse(node.func) == "str"
        )
        if is_text and any(map(is_error, node.args)) and id(node) not in alone:  # type: ignore[attr-defined]
            yield node


def _found(source: str, where: str) -> Iterator[str]:
    for handler in ast.walk(ast.parse(source)):
        if not isinstance(handler, ast.ExceptHandler) or not handler.name:
            continue
        if _kinds(handler.type) & MAY_BE_EMPTY:
            for node in _bare(handler):
                yield f"{where}:{node.lineno}: {ast.unparse(node)}"  # type: ignore[attr-defined]


def test_every_message_about_an_error_that_may_have_no_text_takes_its_reason() -> (
    None
):
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    ours = [
        path
        for path in files
        if not any(each.is_symlink() for each in path.parents)
    ]
    assert len(ours) > 300  # the core alone has fewer than all
    found = [
        each
        for path in ours
        for each in _found(path.read_text(), str(path.relative_to(ROOT)))
    ]
    assert not found, "use reason(error):\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "is_bare"),
    [
        ('f"reading: {e}"', True),
        ('f"reading: {e or 1}"', True),
        ("str(e)", True),
        ('str(e) or "nothing"', False),
        ('f"{type(e).__name__}: {e}"', False),
        ('f"reading: {e!r}"', False),
        ('f"reading: {reason(e)}"', False),
    ],
)
def test_what_counts_as_bare(text: str, is_bare: bool) -> None:
    source = f"try:\n    pass\nexcept (ValueError, OSError) as e:\n    say({text})\n"
    assert bool(list(_found(source, "x"))) is is_bare
    assert not list(_found(source.replace("OSError", "KeyError"), "x"))
