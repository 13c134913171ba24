"""How ``patchlight ocs`` asks before a change that breaks something."""

import asyncio
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from patchlight.cli.ocs import Flags, confirmed, print_change
from patchlight.console.direct import DirectClient
from patchlight.controller.changes.parts import CircuitParts, NoHooks
from patchlight.controller.changes.service import CircuitService
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.circuits.registry import open_driver
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Endpoint
from patchlight.testbed.labfile.reader import read_lab
from patchlight.testbed.wire.rest.circuits import PlanAnswer
from tests.support.answers import some
from tests.support.controller_process import DRY_LAB


def preview(**given: Any) -> Any:
    return some(PlanAnswer, given)


@pytest.mark.parametrize(
    ("given", "yes", "text", "agreed"),
    [
        ({}, 0, "", False),  # nothing in use: no question
        ({"jobs": ["j"]}, 0, "y\n", True),
        ({"jobs": ["j"]}, 0, "n\n", None),
        ({"jobs": ["j"]}, 0, "", None),  # nobody there to ask
        ({"jobs": ["j"]}, 1, "", False),
        ({"strangers": {"o1": ["1>2"]}}, 0, "y\n", True),
        ({"strangers": {"o1": ["1>2"]}}, 0, "", None),
        ({"strangers": {"o1": ["1>2"]}}, 1, "", False),
        # Will be refused anyway.
        (
            {"jobs": ["j"], "objections": ["locked"]},
            0,
            "",
            False,
        ),
        ({"lost": {"o1": 9}}, 0, "y\no1\n", True),
        ({"lost": {"o1": 9}}, 0, "y\nyes\n", None),
        ({"lost": {"o1": 9}}, 1, "o1\n", True),
        ({"lost": {"o1": 9}}, 2, "", False),
        ({"lost": {"o1": 2}, "cleared": ["o1"]}, 0, "", False),
    ],
)
def test_questions_are_asked_where_something_in_use_or_much_goes(
    given: dict[str, Any], yes: int, text: str, agreed: bool | None
) -> None:
    @click.command()
    def asking() -> None:
        flags = Flags(False, yes, "", False)
        terms = confirmed(preview(planned_from="maps", **given), flags)
        assert terms is not None
        click.echo(f"agreed {terms['planned_from'] == 'maps'}")

    result = CliRunner().invoke(asking, input=text)
    if agreed is None:
        assert isinstance(result.exception, PatchlightError)
        assert "nothing was changed" in result.exception.message
    else:
        assert f"agreed {agreed}" in result.output


class Busy(NoHooks):
    """Jobs that ride on whatever moves."""

    def __init__(self) -> None:
        self.jobs = ["train-1"]
        self.next: list[list[str]] = []

    def jobs_using(self, moved: frozenset[Endpoint]) -> list[str]:
        return self.next.pop(0) if self.next else self.jobs


def test_a_circuit_that_a_job_uses_is_shown_and_asked_for(
    tmp_path: Path,
) -> None:
    (tmp_path / "lab.yaml").write_text(DRY_LAB.format(api=1, openflow=2))
    lab = read_lab(tmp_path / "lab.yaml")
    busy = Busy()
    with asyncio.Runner() as runner:
        drivers = {"o1": open_driver(lab.circuit_switch("o1"))}
        parts = CircuitParts(lab, drivers, Store(":memory:"), busy, busy)
        service = CircuitService(parts, Transactions(parts))
        client = DirectClient(service, runner.get_loop())
        maps = {"o1": ["2-4"]}

        @click.command()
        @click.option("--yes", is_flag=True)
        def asking(yes: bool) -> None:
            flags = Flags(False, int(yes), "why", False)
            preview = client.preview_reconfiguration(maps)
            if terms := confirmed(preview, flags):
                print_change(client.reconfigure(maps, **terms), as_json=False)

        def told(*words: str, text: str = "") -> str:
            result = CliRunner().invoke(asking, words, input=text)
            return f"{result.output}{result.exception or ''}"

        start = client.circuits()
        shown = told(text="n\n")
        for line in (
            "o1 - 2>5",
            "o1 + 2>4",
            "in use by job train-1",
            "link down: b.n1:t2.1",
        ):
            assert line in shown
        assert client.circuits() == start
        assert "committed" in told(text="y\n")
        client.reconfigure({"o1": ["2-5"]})
        assert "committed" in told("--yes")
        client.reconfigure({"o1": ["2-5"]})
        # Nobody rides when it is looked at, somebody does when it is to be done.
        busy.next = [[]]
        assert "traffic of train-1 uses these circuits" in told()
        assert client.circuits() == start
