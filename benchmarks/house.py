"""The size and the structure of the source, beside their limits: ``python -m benchmarks.house``.

Ends with 1 if anything is over its limit. ``--no-worse`` lets what is over its limit be as large as
``benchmarks/house.json`` has recorded, which only falls; ``--ways`` lists the modules that each
traced command passes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import click
from click.testing import CliRunner
from rich.console import Console
from rich.table import Table

from docs.hooks import PART
from patchlight.cli.main import cli
from patchlight.console.shared import SharedOption
from patchlight.testbed.labfile.reader import read_lab
from tests.support.controller_process import controller_process
from tests.support.emulated_devices import lab_file, running
from tests.support.house import FOLDERS, ROOT, House, budgets

RECORD = ROOT / "benchmarks" / "house.json"

_STARTS = (
    ["--help"],
    ["lab", "show", "ofc2022"],
    ["policy", "show"],
    ["env", "show"],
    ["graph", "show"],
)


class Row(NamedTuple):
    """Something measured of the source, and its limit."""

    what: str
    now: float
    limit: float

    @property
    def over(self) -> bool:
        """Whether it is over the limit."""
        return self.now > self.limit


# So much more than was measured is recorded: not each small change has to write the record again.
_ROOM = 1.003


# A record that is so much more than what is measured would let the source grow back.
_SLACK = 0.02


def recorded(rows: Iterable[Row]) -> dict[str, float]:
    """The record of what is over its limit."""
    most = {row.what: round(row.now * _ROOM, 6) for row in rows if row.over}
    return {
        what: int(value) if value > 10 else round(value, 2)
        for what, value in most.items()
    }


def worse_than(record: Mapping[str, float], rows: Iterable[Row]) -> list[str]:
    """Rows over their limit that are above their record too, and records that could be lower."""
    rewrite = (
        "write the record again: python -m benchmarks.house --write-record"
    )
    unused = dict(record)
    found = list[str]()
    for row in rows:
        last = unused.pop(row.what, None)
        now = (
            f"{row.what}: {row.now:,.5g}"
            if row.now < 1000
            else f"{row.what}: {row.now:,}"
        )
        if not row.over and last is not None:
            found.append(
                f"{now}, within its limit of {row.limit:,}: {rewrite}"
            )
        elif row.over and last is None:
            found.append(
                f"{now}, over its limit of {row.limit:,}: make it smaller"
            )
        elif row.over and last is not None and row.now > last:
            found.append(
                f"{now}, more than the {last:,} recorded: make it smaller"
            )
        elif row.over and last is not None and row.now < last * (1 - _SLACK):
            found.append(
                f"{now}, {1 - row.now / last:.1%} less than the {last:,} recorded: {rewrite}"
            )
    return [
        *found,
        *(
            f"{what}: recorded, but no longer measured: {rewrite}"
            for what in unused
        ),
    ]


@dataclass
class Way:
    """What calls passed in one run: modules, functions, and changes from a module to another."""

    modules: dict[str, int]
    functions: set[tuple[str, str]]
    changes: int = 0


def way_of(run: Callable[[], object], root: Path = ROOT) -> Way:
    """What ``run`` passes in this thread. It runs twice, the first time for its imports.

    A change is a call from one module of ours to another, directly or through other people's code.
    """
    way = Way({}, set())
    names: dict[CodeType, str | None] = {}
    stack: list[str | None] = [None]

    def name_of(code: CodeType) -> str | None:
        path = Path(os.path.realpath(code.co_filename))
        if code.co_filename.startswith("<") or not path.is_relative_to(root):
            return None
        if path.parts[len(root.parts)].startswith(
            (".", "tests", "benchmarks")
        ):
            return None
        return path.relative_to(root).as_posix()

    def follow(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            if code not in names:
                names[code] = name_of(code)
            name = names[code]
            above = stack[-1]
            stack.append(name or above)
            if name is None:
                return
            way.modules[name] = way.modules.get(name, 0) + 1
            way.functions.add((name, code.co_qualname))
            way.changes += above is not None and name != above
        elif event == "return" and len(stack) > 1:
            stack.pop()

    run()
    sys.setprofile(follow)
    try:
        run()
    finally:
        sys.setprofile(None)
    return way


def words(path: Path) -> int:
    """Words that people wrote on a page: what has a letter or a digit, without generated parts."""
    written = PART.sub("", path.read_text(encoding="utf-8"))
    return sum(any(map(str.isalnum, word)) for word in written.split())


def commands_and_options(group: click.Group) -> tuple[int, int]:
    """How many commands a group has below it, and how many options they have in all.

    An option that a group describes for all of its commands counts once.
    """
    commands = 0
    own = 0
    shared = set[tuple[str, str]]()
    groups = [group]
    while groups:
        context = click.Context(above := groups.pop())
        for name in above.list_commands(context):
            command = above.get_command(context, name)
            assert command is not None, name
            if isinstance(command, click.Group):
                groups.append(command)
                continue
            commands += 1
            for option in command.params:
                if isinstance(option, SharedOption) and option.of is not None:
                    shared.add((option.of, option.opts[-1]))
                else:
                    own += isinstance(option, click.Option)
    return commands, own + len(shared)


def start_s(*arguments: str) -> float:
    """Seconds that a command takes to start, print and end: the least of five runs."""

    def once() -> float:
        begin = time.perf_counter()
        command = [sys.executable, "-m", "patchlight", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(
                f"{' '.join(command)} ended with {done.returncode}: {done.stderr}"
            )
        return time.perf_counter() - begin

    return min(once() for _ in range(5))


def _command(*said: str) -> None:
    result = CliRunner().invoke(cli, said)
    if result.exception or result.exit_code:
        raise RuntimeError(
            f"patchlight {' '.join(said)}: {result.output}"
        ) from result.exception


@contextmanager
def _device(folder: Path) -> Iterator[Path]:
    """A lab file whose circuit switch is an emulated one that answers."""
    with running(
        folder,
        lab_file(folder, driver="polatis-scpi", initial=("1-2",)),
        "--no-fabric",
    ) as device:
        path = folder / "lab.yaml"
        text = path.read_text().replace(
            "127.0.0.1:3082", device.switch.address
        )
        path.write_text(f"{text}controller: {{api: '127.0.0.1:1'}}\n")
        yield path


def _connecting() -> Way:
    """A change of circuits; in another map, or where the device answers in pieces, it is longer."""
    with tempfile.TemporaryDirectory() as name, _device(Path(name)) as lab:
        ports = iter(("3:4", "5:6"))
        more = [
            "--direct",
            "--lab",
            str(lab),
            "--state",
            f"{name}/state",
            "--yes",
        ]
        return way_of(
            lambda: _command("ocs", "connect", "ocs1", next(ports), *more)
        )


def ways() -> dict[str, Way]:
    """The modules that reading a lab file, a change of circuits and a job's submission pass."""
    found: dict[str, Way] = {}
    with tempfile.TemporaryDirectory() as name, _device(Path(name)) as lab:
        found["reading a small lab file"] = way_of(lambda: read_lab(lab))
    connections = [_connecting() for _ in range(5)]
    found["ocs connect --direct"] = min(
        connections, key=lambda way: way.changes
    )
    with (
        tempfile.TemporaryDirectory() as name,
        controller_process(Path(name)) as controller,
    ):
        job = ["job", "submit", "vgg", "--workers", "2", "--iterations", "4"]
        job += [
            "--gradient",
            "1MB",
            "--compute",
            "M=100ms",
            "--controller",
            controller.api,
        ]
        found["job submit, the client's side"] = way_of(lambda: _command(*job))
    return found


def measured(house: House, traced: dict[str, Way], broken: int) -> list[Row]:
    """All but the times, each with its limit."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    pages = {path: words(path) for path in (ROOT / "docs").rglob("*.md")}
    commands, options = commands_and_options(cli)
    connect = traced["ocs connect --direct"]
    submit = traced["job submit, the client's side"]
    return [
        Row("all source, tokens", house.tokens(), 700_000),
        Row(
            "core: source without the wings, tokens",
            house.tokens("core"),
            500_000,
        ),
        *(
            Row(f"{room}, tokens", house.tokens(room), limit)
            for room, limit in budgets(page).items()
        ),
        *(
            Row(f"{folder}: tokens per line", house.density(folder), 5.6)
            for folder in FOLDERS
        ),
        Row("files of source", len(house.sources), 600),
        Row("import lines in code, %", house.import_share(), 8),
        Row("ocs connect --direct: modules", len(connect.modules), 30),
        Row("ocs connect --direct: changes of module", connect.changes, 300),
        Row(
            "reading a small lab file: modules",
            len(traced["reading a small lab file"].modules),
            8,
        ),
        Row("job submit, client's side: modules", len(submit.modules), 15),
        Row("modules with one importer", len(house.imported_once()), 100),
        Row(
            "class names defined more than once",
            len(house.names_of_several_classes()),
            15,
        ),
        *(
            Row(
                f"files directly in {folder}/",
                len(list((ROOT / folder).glob("*.py"))),
                9,
            )
            for folder in ("controller", "testbed")
        ),
        Row("circles, imports upwards, wings in the core", broken, 0),
        Row(
            "docs/architecture.md, words",
            pages[ROOT / "docs" / "architecture.md"],
            1_500,
        ),
        Row("docs, words", sum(pages.values()), 30_000),
        Row("longest page, words", max(pages.values()), 3_000),
        Row("commands", commands, 78),
        Row("options of all commands, shared ones once", options, 360),
    ]


def _show(rows: list[Row]) -> None:
    table = Table("measured", "now", "limit")
    for row in rows:
        now = (
            f"{row.now:,.4g}" if isinstance(row.now, float) else f"{row.now:,}"
        )
        table.add_row(
            row.what,
            now,
            f"≤ {row.limit:,}",
            style="red" if row.over else None,
        )
    Console(width=100).print(table)


def main() -> int:
    """Print the table; 1 if a row is over its limit, or with ``--no-worse`` over its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--ways",
        action="store_true",
        help="list the modules of each traced command",
    )
    parser.add_argument(
        "--names",
        action="store_true",
        help="list class names defined more than once",
    )
    judged = parser.add_mutually_exclusive_group()
    judged.add_argument(
        "--no-worse",
        action="store_true",
        help="rows over their limit may be as in the record",
    )
    judged.add_argument(
        "--write-record",
        action="store_true",
        help="record the rows that are over their limit",
    )
    options = parser.parse_args()
    house = House()
    traced = ways()
    broken = house.circles() + house.violations()
    rows = measured(house, traced, len(broken))
    if options.write_record:
        RECORD.write_text(
            json.dumps(recorded(rows), indent=2, ensure_ascii=False) + "\n"
        )
        return 0
    # Times vary with what else the machine does: there is no record of them.
    times = () if options.no_worse else _STARTS
    starts = [
        Row(f"start of patchlight {' '.join(of)}, s", start_s(*of), 0.4)
        for of in times
    ]
    _show([*rows, *starts])
    if options.names:
        twice = house.names_of_several_classes()
        print(
            "\n".join(
                f"{name}: {', '.join(modules)}"
                for name, modules in twice.items()
            )
        )
    for name, way in traced.items() if options.ways else ():
        print(
            f"{name}: {len(way.modules)} modules, {len(way.functions)} functions, "
            f"{way.changes} changes"
        )
        print("".join(f"  {module}\n" for module in way.modules))
    print("\n".join(broken[:40]))
    if options.no_worse:
        worse = worse_than(json.loads(RECORD.read_text()), rows)
        print("\n".join(worse))
        return int(bool(worse))
    return int(any(row.over for row in (*rows, *starts)))


if __name__ == "__main__":
    raise SystemExit(main())
