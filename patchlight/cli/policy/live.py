"""``patchlight policy`` commands that ask a controller: who decides, and what was decided."""

from typing import Any, cast

import click

from patchlight.cli.policy.options import absolute, is_on, kinds_of_policies
from patchlight.console.completion import complete_job
from patchlight.console.connection import connect, controller_options, lab_meant
from patchlight.console.rendering import Coloured, Column, Table, listing_options, print_json


@click.command()
@kinds_of_policies
@listing_options
@controller_options
def use(
    defragment: str | None,
    as_json: bool,
    lab_name: str | None,
    address: str | None,
    **chosen: str | None,
) -> None:
    """Have other policies decide in a lab that is up; without an option, print which do.

    They decide from the next job on, and what runs is left as it is. The choice goes before the lab
    file, and outlives the controller until that is started with other options. A policy in a file
    is a program: root has to name it, or whoever runs the controller.
    """
    wanted: dict[str, Any] = {kind: absolute(name) for kind, name in chosen.items() if name}
    if defragment is not None:
        wanted["defragment"] = is_on(defragment)
    with connect(lab_name, address) as client:
        words = client.use_policies(wanted) if wanted else client.policies()
    if as_json:
        print_json(words)
        return
    table = Table("kind", Column("policy", whole=True))
    for kind, name in words.items():
        if kind != "defragment":
            table.add_row(kind, str(name or "(jobs have to say it)"))
    table.add_row("defragment", "on" if words["defragment"] else "off")
    table.print()


@click.command()
@click.argument("job", metavar="JOB", shell_complete=complete_job)
@click.option("--with", "other", metavar="POLICY", help="Ask this one instead, where it can be.")
@listing_options
@controller_options
def replay(
    job: str, other: str | None, as_json: bool, lab_name: str | None, address: str | None
) -> None:
    """Ask the policies again what they were asked of JOB, with all that they saw then.

    Nothing is changed. With --with, another policy is asked what those of its kind were.
    """
    from patchlight.cli.job.find import find_job
    from patchlight.controller.jobs.decisions import arguments, plain_answer
    from patchlight.controller.policies.contract import METHODS, PolicyKind
    from patchlight.controller.policies.registry import find, load_policy

    with connect(lab_name, address) as client:
        job_id = find_job(client, job)
        own_graph = client.job(job_id)["spec"]["graph"]
        decisions = client.decisions(job_id)
    lab = lab_meant(lab_name, address)
    kind = None if other is None else find(other).kind
    rows: list[dict[str, Any]] = []
    for decision in decisions:
        if decision["kind"] not in METHODS or kind not in (None, decision["kind"]):
            continue
        of_kind = cast("PolicyKind", decision["kind"])
        policy: Any = load_policy(other or decision["policy"], of_kind)
        saw = arguments(of_kind, decision["saw"], lab, own_graph)
        again = plain_answer(getattr(policy, METHODS[of_kind])(*saw))
        rows.append(
            {
                "kind": decision["kind"],
                "policy": decision["policy"],
                "decided": decision["answer"],
                "asked": other or decision["policy"],
                "answer": again,
                "same": again == decision["answer"],
            }
        )
    if as_json:
        print_json(rows)
        return
    table = Table("kind", "policy", "decided", "asked again", Column("same", whole=True))
    for row in rows:
        same = Coloured("yes", "good") if row["same"] else Coloured("no", "caution")
        cells = (row["kind"], row["asked"], _words(row["decided"]), _words(row["answer"]))
        table.add_row(*cells, same)
    table.print()


def _words(answer: Any) -> str:
    if isinstance(answer, dict):
        parts = (
            f"{name}: {', '.join(each) if isinstance(each, list) else each}"
            for name, each in answer.items()
        )
        return "; ".join(parts) or "as it is"
    if isinstance(answer, list):
        return "GPUs " + ", ".join(map(str, answer))
    return "wait" if answer is None else str(answer)


COMMANDS = (use, replay)
