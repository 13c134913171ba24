"""The size and the structure of the source, beside their limits: ``python -m benchmarks.house``.

Ends with 1 on a circle of imports, an import upwards, or a core that imports a wing. ``--ways``
lists the modules that each traced command passes.
"""

import argparse
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
from tests.support.house import ROOT, House, Way, commands_and_options, start_s, way_of, words

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


def ways() -> dict[str, Way]:
    """The modules that reading a lab file, a change of circuits and a job's submission pass."""
    found: dict[str, Way] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _device(folder) as lab:
            found["reading a small lab file"] = way_of(lambda: read_lab(lab))
            ports = iter(range(3, 30, 2))

            def connect() -> None:
                port = next(ports)
                more = ["--direct", "--lab", str(lab), "--state", str(folder / "state"), "--yes"]
                _command("ocs", "connect", "ocs1", f"{port}:{port + 1}", *more)

            found["ocs connect --direct"] = way_of(connect)
    with tempfile.TemporaryDirectory() as name, controller_process(Path(name)) as controller:
        job = ["job", "submit", "vgg", "--workers", "2", "--iterations", "4"]
        job += ["--gradient", "1MB", "--compute", "M=100ms", "--controller", controller.api]
        found["job submit, the client's side"] = way_of(lambda: _command(*job))
    return found


def main() -> int:
    """Print the table; 1 if a wall is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--ways", action="store_true", help="list the modules of each traced command"
    )
    parser.add_argument(
        "--names", action="store_true", help="list class names defined more than once"
    )
    options = parser.parse_args()
    house, traced = House(), ways()
    table = Table("measured", "now", "limit")

    def row(what: str, now: float, limit: float) -> None:
        style = "red" if now > limit else None
        table.add_row(
            what,
            f"{now:,.4g}" if isinstance(now, float) else f"{now:,}",
            f"≤ {limit:,}",
            style=style,
        )

    row("core: source without the wings, lines", house.lines(core=True), 81_500)
    row("all source, lines", house.lines(), 113_000)
    row("files of source", len(house.sources), 600)
    row("import lines in code, %", house.import_share(), 8)
    row("ocs connect --direct: modules", len(traced["ocs connect --direct"].modules), 30)
    row("ocs connect --direct: changes of module", traced["ocs connect --direct"].changes, 300)
    row("reading a small lab file: modules", len(traced["reading a small lab file"].modules), 8)
    row(
        "job submit, client's side: modules",
        len(traced["job submit, the client's side"].modules),
        15,
    )
    row("modules with one importer", len(house.imported_once()), 100)
    repeated = house.names_of_several_classes()
    row("class names defined more than once", len(repeated), 15)
    for folder in ("controller", "testbed"):
        row(f"files directly in {folder}/", len(list((ROOT / folder).glob("*.py"))), 9)
    broken = house.circles() + house.violations()
    row("circles, imports upwards, wings in the core", len(broken), 0)
    pages = {path: words(path) for path in (ROOT / "docs").rglob("*.md")}
    row("docs/architecture.md, words", pages[ROOT / "docs" / "architecture.md"], 1_500)
    row("docs, words", sum(pages.values()), 30_000)
    row("longest page, words", max(pages.values()), 3_000)
    commands, options_ = commands_and_options(cli)
    row("commands", commands, 75)
    row("options of all commands, shared ones once", options_, 350)
    for words_ in _STARTS:
        row(f"start of patchlight {' '.join(words_)}, s", start_s(*words_), 0.4)
    Console(width=100).print(table)
    if options.names:
        print("\n".join(f"{name}: {', '.join(modules)}" for name, modules in repeated.items()))
    for name, way in traced.items() if options.ways else ():
        print(
            f"{name}: {len(way.modules)} modules, {len(way.functions)} functions, "
            f"{way.changes} changes"
        )
        print("".join(f"  {module}\n" for module in way.modules))
    print("\n".join(broken[:40]))
    return int(bool(broken))


if __name__ == "__main__":
    raise SystemExit(main())
