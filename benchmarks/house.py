"""The size and the structure of the source, beside their limits: ``python -m benchmarks.house``.

Ends with 1 if anything is over its limit. ``--no-worse`` lets what is over its limit be as large as
``benchmarks/house.json`` has recorded, which only falls; ``--ways`` lists the modules that each
traced command passes.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner
from rich.console import Console
from rich.table import Table

from patchlight.cli.main import cli
from patchlight.testbed.labfile.reader import read_lab
from tests.support.controller_process import controller_process
from tests.support.emulated_devices import lab_file, running
from tests.support.house import (
    FOLDERS,
    ROOT,
    House,
    Row,
    Way,
    budgets,
    commands_and_options,
    recorded,
    start_s,
    way_of,
    words,
    worse_than,
)

RECORD = ROOT / "benchmarks" / "house.json"

_STARTS = (
    ["--help"],
    ["lab", "show", "ofc2022"],
    ["policy", "show"],
    ["env", "show"],
    ["graph", "show"],
)


def _command(*words: str) -> None:
    result = CliRunner().invoke(cli, words)
    if result.exception or result.exit_code:
        raise RuntimeError(f"patchlight {' '.join(words)}: {result.output}") from result.exception


@contextmanager
def _device(folder: Path) -> Iterator[Path]:
    """A lab file whose circuit switch is an emulated one that answers."""
    with running(
        folder, lab_file(folder, driver="polatis-scpi", initial=("1-2",)), "--no-fabric"
    ) as device:
        path = folder / "lab.yaml"
        text = path.read_text().replace("127.0.0.1:3082", device.switch.address)
        path.write_text(f"{text}controller: {{api: '127.0.0.1:1'}}\n")
        yield path


def _connecting() -> Way:
    """A change of circuits; in another map, or where the device answers in pieces, it is longer."""
    with tempfile.TemporaryDirectory() as name, _device(Path(name)) as lab:
        ports = iter(("3:4", "5:6"))
        more = ["--direct", "--lab", str(lab), "--state", f"{name}/state", "--yes"]
        return way_of(lambda: _command("ocs", "connect", "ocs1", next(ports), *more))


def ways() -> dict[str, Way]:
    """The modules that reading a lab file, a change of circuits and a job's submission pass."""
    found: dict[str, Way] = {}
    with tempfile.TemporaryDirectory() as name, _device(Path(name)) as lab:
        found["reading a small lab file"] = way_of(lambda: read_lab(lab))
    connections = [_connecting() for _ in range(5)]
    found["ocs connect --direct"] = min(connections, key=lambda way: way.changes)
    with tempfile.TemporaryDirectory() as name, controller_process(Path(name)) as controller:
        job = ["job", "submit", "vgg", "--workers", "2", "--iterations", "4"]
        job += ["--gradient", "1MB", "--compute", "M=100ms", "--controller", controller.api]
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
        Row("core: source without the wings, tokens", house.tokens("core"), 500_000),
        *(
            Row(f"{room}, tokens", house.tokens(room), limit)
            for room, limit in budgets(page).items()
        ),
        *(Row(f"{folder}: tokens per line", house.density(folder), 5.6) for folder in FOLDERS),
        Row("files of source", len(house.sources), 600),
        Row("import lines in code, %", house.import_share(), 8),
        Row("ocs connect --direct: modules", len(connect.modules), 30),
        Row("ocs connect --direct: changes of module", connect.changes, 300),
        Row(
            "reading a small lab file: modules", len(traced["reading a small lab file"].modules), 8
        ),
        Row("job submit, client's side: modules", len(submit.modules), 15),
        Row("modules with one importer", len(house.imported_once()), 100),
        Row("class names defined more than once", len(house.names_of_several_classes()), 15),
        *(
            Row(f"files directly in {folder}/", len(list((ROOT / folder).glob("*.py"))), 9)
            for folder in ("controller", "testbed")
        ),
        Row("circles, imports upwards, wings in the core", broken, 0),
        Row("docs/architecture.md, words", pages[ROOT / "docs" / "architecture.md"], 1_500),
        Row("docs, words", sum(pages.values()), 30_000),
        Row("longest page, words", max(pages.values()), 3_000),
        Row("commands", commands, 75),
        Row("options of all commands, shared ones once", options, 350),
    ]


def _show(rows: list[Row]) -> None:
    table = Table("measured", "now", "limit")
    for row in rows:
        now = f"{row.now:,.4g}" if isinstance(row.now, float) else f"{row.now:,}"
        table.add_row(row.what, now, f"≤ {row.limit:,}", style="red" if row.over else None)
    Console(width=100).print(table)


def main() -> int:
    """Print the table; 1 if a row is over its limit, or with ``--no-worse`` over its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--ways", action="store_true", help="list the modules of each traced command"
    )
    parser.add_argument(
        "--names", action="store_true", help="list class names defined more than once"
    )
    judged = parser.add_mutually_exclusive_group()
    judged.add_argument(
        "--no-worse", action="store_true", help="rows over their limit may be as in the record"
    )
    judged.add_argument(
        "--write-record", action="store_true", help="record the rows that are over their limit"
    )
    options = parser.parse_args()
    house, traced = House(), ways()
    broken = house.circles() + house.violations()
    rows = measured(house, traced, len(broken))
    if options.write_record:
        RECORD.write_text(json.dumps(recorded(rows), indent=2, ensure_ascii=False) + "\n")
        return 0
    # Times vary with what else the machine does: there is no record of them.
    times = () if options.no_worse else _STARTS
    starts = [Row(f"start of patchlight {' '.join(of)}, s", start_s(*of), 0.4) for of in times]
    _show([*rows, *starts])
    if options.names:
        twice = house.names_of_several_classes()
        print("\n".join(f"{name}: {', '.join(modules)}" for name, modules in twice.items()))
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
