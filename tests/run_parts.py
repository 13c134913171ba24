"""Runs parts of ``make test``, targets of the Makefile, and says at the end which of them failed.

A part that fails keeps none of the others from running. ``style,types`` is one part whose targets
run at the same time; ``test-vm+vm-servers`` are two parts at the same time. With ``--again``, for
``.ci/run``, each failed test is run once more, alone, when all parts have ended. What passes then
is put down to chance: it is named with the output of both runs, and more than two such tests fail
the run. The last line is then pytest's closing line of the last part.
"""

import argparse
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

MOST_BY_CHANCE = 2
# Of more failed tests than this, chance is not the cause, and running them again takes long.
_MOST_AGAIN = 10
# After SIGTERM, processes may clean up for so long.
_TERM_TO_KILL_S = 10.0
_MARK = f"PATCHLIGHT_PARTS={os.getpid()}"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# What tests/conftest.py prints under CI.
_FAILED = re.compile(
    r"^failed-test: (?P<when>\w+) (?P<test>.+)$", re.MULTILINE
)
_COUNT = r"\d+ (?:passed|failed|errors?|skipped|deselected|xfailed|xpassed|warnings?)"
_CLOSING = re.compile(
    rf"^=* ?(?P<counts>{_COUNT}(?:, {_COUNT})*|no tests ran) in (?P<rest>[0-9.]+s.*)$",
    re.MULTILINE,
)


@dataclass
class Done:
    """A part that has ended; ``output`` is empty where it was not kept."""

    part: str
    code: int
    took_s: float
    output: str

    @property
    def failed(self) -> dict[str, str]:
        """Failed tests, each with the first phase that failed."""
        return {
            found["test"]: found["when"]
            for found in reversed([*_FAILED.finditer(self.output)])
        }

    @property
    def closing(self) -> re.Match[str] | None:
        """The last closing line of pytest."""
        return next(reversed([*_CLOSING.finditer(self.output)]), None)

    def about(self, test: str) -> str:
        """What pytest printed of that failed test."""
        name = re.escape(test.partition("::")[2].replace("::", "."))
        title = rf"^_{{3,}} (?:ERROR at \w+ of )?{name} _{{3,}}$"
        found = re.findall(
            rf"(?ms){title}.*?(?=^_{{3,}} .* _{{3,}}$|^={{3,}} |^failed-test: )",
            self.output,
        )
        return "".join(found) or "(pytest printed nothing of it)\n"


class Interrupted(Exception):
    """A signal requested the end."""


def processes() -> list[int]:
    """What this process and its descendants have started that still runs: daemons have the mark,
    and what sudo starts has not, but a parent that is known. Those of other users are left out."""
    children: dict[int, list[int]] = {}
    marked: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        # It may end meanwhile, and what other users run cannot be read.
        with contextlib.suppress(OSError):
            state, parent = (
                folder.joinpath("stat")
                .read_text()
                .rpartition(")")[2]
                .split()[:2]
            )
            if state == "Z" or os.geteuid() not in (0, folder.stat().st_uid):
                continue
            children.setdefault(int(parent), []).append(int(folder.name))
            if _MARK.encode() in folder.joinpath("environ").read_bytes().split(
                b"\0"
            ):
                marked.append(int(folder.name))
    found: dict[int, None] = {}
    generation = [*children.get(os.getpid(), ()), *marked]
    while generation:
        found |= dict.fromkeys(generation)
        generation = [
            n
            for each in generation
            for n in children.get(each, ())
            if n not in found
        ]
    return [*found]


def signal_all(number: int) -> None:
    """Send a signal to all of these processes."""
    for pid in processes():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _start(
    part: str, *arguments: str, keep: bool
) -> "subprocess.Popen[bytes]":
    command = [
        "make",
        "--no-print-directory",
        "--keep-going",
        "--jobs=2",
        *arguments,
        *part.split(","),
    ]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE if keep else None,
        stderr=subprocess.STDOUT if keep else None,
        env={**os.environ, "PATCHLIGHT_PARTS": str(os.getpid())},
    )


def _finish(part: str, process: "subprocess.Popen[bytes]", show: bool) -> Done:
    """Read a part's output to its end, and ``show`` it meanwhile."""
    begin = time.monotonic()
    output = b""
    while process.stdout is not None and (
        piece := os.read(process.stdout.fileno(), 1 << 16)
    ):
        output += piece
        if show:
            sys.stdout.buffer.write(piece)
            sys.stdout.flush()
    code = process.wait()
    text = output.decode(errors="replace").replace("\r", "")
    took_s = time.monotonic() - begin
    return Done(part, code, took_s, _COLOURS.sub("", text))


def run(names: str, *arguments: str, keep: bool) -> list[Done]:
    """Run parts with ``+`` between them at the same time; ``keep`` their output while the first
    one's is printed, and the others' when they have ended."""
    received: list[int] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        if number == signal.SIGALRM:
            signal_all(signal.SIGKILL)
            return
        received.append(number)
        # Ctrl-C reaches the whole process group by itself.
        if number == signal.SIGTERM:
            signal_all(signal.SIGTERM)
            signal.setitimer(signal.ITIMER_REAL, _TERM_TO_KILL_S, 1.0)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = {each: signal.signal(each, on_signal) for each in signals}
    try:
        started = {
            part: _start(part, *arguments, keep=keep)
            for part in names.split("+")
        }
        first, *others = started
        with ThreadPoolExecutor() as pool:
            ends = [
                pool.submit(_finish, part, started[part], show=False)
                for part in others
            ]
            done = [_finish(first, started[first], show=True)]
            for end in ends:
                done.append(end.result())
                print(f"--- of {done[-1].part}\n{done[-1].output}", flush=True)
        while signal.SIGTERM in received and processes():
            time.sleep(0.05)  # the pause between two looks
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        raise Interrupted
    return done


def closing_line(done: Done, by_chance: int) -> str:
    """Pytest's closing line of a part, in which so many failed tests passed the second time."""
    if (found := done.closing) is None:
        return f"{done.part} ended with {done.code} before pytest had finished"
    if not by_chance:
        return found[0]
    counts = {
        what: int(count)
        for count, what in re.findall(r"(\d+) (\w+)", found["counts"])
    }
    # A test that failed after it had passed is counted twice.
    new = sum(when != "teardown" for when in done.failed.values())
    counts = {
        "passed": counts.pop("passed", 0) + new,
        **counts,
        "rerun": by_chance,
    }
    listed = [
        f"{n} {what}"
        for what, n in counts.items()
        if not re.match("failed|error", what)
    ]
    return f"=== {', '.join(listed)} in {found['rest'].rstrip(' =')} ==="


def again(parts: list[Done]) -> set[str]:
    """Run failed tests once more; the parts in which all of them passed, if they are so few."""
    failed = [
        (done, test) for done in parts if done.code for test in done.failed
    ]
    if len(failed) > _MOST_AGAIN:
        print(
            f"{len(failed)} tests failed: too many to run each of them once more"
        )
        return set()
    passed = []
    for done, test in failed:
        print(f"--- once more, alone: {test}", flush=True)
        argument = shlex.quote(test).replace("$", "$$")
        (second,) = run(done.part, f"PYTEST_ARGS={argument}", keep=True)
        if second.code == 0:
            passed.append((done, test, second.output))
    for done, test, output in passed:
        print(
            f"\n=== by chance: {test} failed in {done.part} and passed alone; the first run:"
        )
        print(f"{done.about(test)}--- the second run:\n{output}")
    if len(passed) > MOST_BY_CHANCE:
        print(
            f"{len(passed)} tests failed by chance, more than {MOST_BY_CHANCE}"
        )
        return set()
    good = {(done.part, test) for done, test, _ in passed}
    return {
        done.part
        for done in parts
        if done.failed
        and all((done.part, test) in good for test in done.failed)
    }


def main() -> int:
    """Run the parts; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "parts", nargs="+", metavar="PART", help="targets of the Makefile"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="run failed tests once more, and end as pytest does",
    )
    options = parser.parse_args()
    ended: list[Done] = []
    try:
        for part in options.parts:
            print(f"--- {part}", flush=True)
            ended += run(part, keep=options.again)
        forgiven = again(ended) if options.again else set()
    except Interrupted:
        print("interrupted", flush=True)
        return 130
    for done in ended:
        how = f"FAILED ({done.code})" if done.code else "passed"
        how = (
            "passed but for tests that failed by chance"
            if done.part in forgiven
            else how
        )
        print(f"{done.part}: {how} in {done.took_s:.0f} s")
    last = ended[-1]
    if options.again:
        print(
            closing_line(
                last, len(last.failed) if last.part in forgiven else 0
            )
        )
    return int(any(done.code and done.part not in forgiven for done in ended))


if __name__ == "__main__":
    raise SystemExit(main())
