"""Help, schemas, the REST API and results of simulations are as the files in ``tests/golden``,
and the reference in ``docs`` is as the code has it.

``PATCHLIGHT_GOLDEN=write pytest tests/test_golden.py`` writes the files again; the diff then shows
what changes for users. ``openapi.json`` has the API's answers as examples, which
``tests/controller/test_examples.py`` compares with those of a running controller.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from tests.support.controller_process import controller_process
from tests.support.programs import ROOT

GOLDEN = Path(__file__).parent / "golden"
# Three simulators, and what makes their queue, circuits and networks differ.
RUNS = (
    "--trace helios --jobs 60",
    "--trace pai --jobs 80 --speed 100 --order srpt --backfill --cluster 2x4x8",
    "--trace helios --jobs 40 --lab ofc2022 --topology regroup --defragment",
    "--trace helios --jobs 3 --network fat-tree:k=4",
    "--trace helios --jobs 60 --speed 50 --cluster 2x4x8 --failures server:4h:1h --order las",
    "--trace pai --jobs 3 --network ramp:groups=2,racks=2,channels=2",
)
# Of the run, and not of the result.
OF_THIS_RUN = {
    "provenance",
    "duration_s",
    "latency_p50_s",
    "latency_p99_s",
    "cpu_s",
}
OF_THIS_RUN |= {"jobs_per_cpu_s", "machine"}


def compare(name: str, text: str, folder: Path = GOLDEN) -> None:
    file = folder / name
    if os.environ.get("PATCHLIGHT_GOLDEN") == "write":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), (
        f"{name} changes: see the module's docstring"
    )


def commands(
    command: click.Command, path: str
) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, f"{path} {name}")


def help_of_all() -> str:
    texts = []
    for path, command in commands(cli, "patchlight"):
        words = path.split()[1:]
        result = CliRunner().invoke(
            cli, [*words, "--help"], prog_name="patchlight"
        )
        assert result.exit_code == 0, path
        texts.append(f"$ {path} --help\n{result.output}")
        assert command.help, f"{path} has no help"
    return "\n".join(texts)


@pytest.mark.wings
def test_the_help_of_every_command() -> None:
    # In a process of its own: click keeps in each command how it was first asked for help.
    program = "from tests.test_golden import help_of_all; print(help_of_all(), end='')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    compare("help.txt", done.stdout)


@pytest.mark.wings
def test_the_reference_in_the_documentation() -> None:
    program = (
        "import json; from docs.hooks import pages; print(json.dumps(pages()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    pages = json.loads(done.stdout)
    assert {"reference/ocs.md", "reference/lab-files.md"} <= pages.keys()
    for name, text in pages.items():
        compare(name, text, ROOT / "docs")


@pytest.mark.parametrize("what", ["lab", "job"])
def test_the_schemas(what: str) -> None:
    result = CliRunner().invoke(cli, ["lab", "check", "--schema", what])
    assert result.exit_code == 0
    compare(f"{what}-schema.json", result.output)


def test_the_rest_api(tmp_path: Path) -> None:
    with controller_process(tmp_path) as controller:
        answer = httpx.get(
            f"http://{controller.api}/openapi.json", trust_env=False
        )
    compare(
        "openapi.json",
        json.dumps(answer.json(), indent=1, sort_keys=True) + "\n",
    )


def rounded(value: Any) -> Any:
    """Without what is of the run, and what the last digits of another processor would change."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {
            key: rounded(each)
            for key, each in value.items()
            if key not in OF_THIS_RUN
        }
    return (
        [rounded(each) for each in value] if isinstance(value, list) else value
    )


@pytest.mark.wings
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("seed", range(len(RUNS)))
def test_the_results_of_six_seeds(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "simulate",
        *RUNS[seed].split(),
        "--seed",
        str(seed),
        "--processes",
        "1",
        "--json",
    ]
    result = CliRunner().invoke(cli, [*words, "--output", "out"])
    assert result.exit_code == 0, result.output
    found = rounded(json.loads(result.stdout))
    compare(f"simulate-{seed}.json", json.dumps(found, indent=1) + "\n")
