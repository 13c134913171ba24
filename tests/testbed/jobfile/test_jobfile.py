"""Job files: what they say, and every mistake in them at its place."""

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.describe import described
from patchlight.testbed.io.options import value_of
from patchlight.testbed.jobfile.reader import (
    JobFileError,
    Overrides,
    jobs_meant,
    jobs_of,
    parse_jobs,
    read_jobs,
)
from patchlight.testbed.jobfile.schema import Defaults, Sweep, json_schema
from patchlight.testbed.jobs import JobSpec, Mount, checked_specs
from patchlight.testbed.labfile.reader import builtin_lab, parse_lab
from tests.support.schemas import Draft202012Validator
from tests.support.tables import below, mistakes, unmarked

KEYS = described(Defaults)["properties"]
ONE = """\
name: vgg
workers: 4
iterations: 1_000
gradient: 553MB
compute: {Tesla M40: 500ms, Titan V: 0.25s}
"""

EVERYTHING = """\
name: resnet
trainer: command
workers: auto
degrees: [2, 4]
gpu_models: A100
iterations: 10
gradient: 102.2MB
compute: {A100: 80ms}
seed: 7
command: [python, train.py, --epochs, 3]
image: pytorch/pytorch:2.4.0
environment: {LEARNING_RATE: 0.1, MODE: "true"}
mounts: ["/srv/data:/data", "/srv/out:/out:rw", {source: /a, target: /b, read_only: false}]
shared_memory: 1GB
memory: 64GB
cpus: 7.5
working_directory: /srv/resnet
hold: freeze
graph: resnet50
requirement: 0.5
priority: -3
after: [prepare, fetch-1a2b3c]
retries: 2
checkpoint: /srv/checkpoints
preemptible: false
topology: regroup
placement: consolidated
dark_limit: 5min
stop_grace: 2min
"""

GANG = """\
defaults: {iterations: 5, gradient: 40MB, compute: {M: 0.1s}}
jobs:
  - {name: a, workers: 2}
  - {name: b, hosts: [server1.gpu0, gpu3], iterations: 6}
"""


def test_a_file_of_one_job() -> None:
    jobs = parse_jobs(ONE)
    compute_s = {"Tesla M40": 0.5, "Titan V": 0.25}
    assert jobs.specs == (
        JobSpec("vgg", 1000, 553_000_000, compute_s, workers=4),
    )
    assert jobs.together


def test_a_file_with_every_key() -> None:
    (spec,) = parse_jobs(EVERYTHING).specs
    assert spec == JobSpec(
        "resnet",
        trainer="command",
        degrees=(2, 4),
        gpu_models=("A100",),
        iterations=10,
        gradient_bytes=102_200_000,
        compute_s={"A100": 0.08},
        seed=7,
        command=("python", "train.py", "--epochs", "3"),
        image="pytorch/pytorch:2.4.0",
        environment={"LEARNING_RATE": "0.1", "MODE": "true"},
        mounts=(
            Mount("/srv/data", "/data"),
            Mount("/srv/out", "/out", False),
            Mount("/a", "/b", False),
        ),
        shared_memory_bytes=10**9,
        memory_bytes=64 * 10**9,
        cpus=7.5,
        working_directory="/srv/resnet",
        hold="freeze",
        graph="resnet50",
        requirement=0.5,
        priority=-3,
        after=("prepare", "fetch-1a2b3c"),
        retries=2,
        checkpoint="/srv/checkpoints",
        preemptible=False,
        topology="regroup",
        placement="consolidated",
        dark_limit_s=300.0,
        stop_grace_s=120.0,
    )


def test_a_shell_line_is_run_by_a_shell() -> None:
    (spec,) = parse_jobs(
        "name: a\nworkers: 1\ncommand: cd /srv && ./train > log"
    ).specs
    assert (spec.trainer, spec.command) == (
        "command",
        ("sh", "-c", "cd /srv && ./train > log"),
    )


def test_several_jobs_start_together_and_have_defaults() -> None:
    jobs = parse_jobs(GANG)
    assert jobs.together
    assert [(s.name, s.iterations, s.size, s.hosts) for s in jobs.specs] == [
        ("a", 5, 2, ()),
        ("b", 6, 2, ("server1.gpu0", "gpu3")),
    ]


def test_a_sweep_makes_a_job_for_each_combination_with_a_name_that_says_which() -> (
    None
):
    jobs = parse_jobs(
        ONE + "sweep: {workers: [2, 6], gradient: [10MB, 1.5MiB]}"
    )
    assert not jobs.together
    assert [(s.name, s.workers, s.gradient_bytes) for s in jobs.specs] == [
        ("vgg-workers-2-gradient-10MB", 2, 10_000_000),
        ("vgg-workers-2-gradient-1.5MiB", 2, 1_572_864),
        ("vgg-workers-6-gradient-10MB", 6, 10_000_000),
        ("vgg-workers-6-gradient-1.5MiB", 6, 1_572_864),
    ]


def test_the_jobs_of_an_array_differ_in_seed_or_in_a_variable() -> None:
    synthetic = parse_jobs(ONE + "seed: 5\narray: 3")
    assert not synthetic.together
    assert [(s.name, s.seed) for s in synthetic.specs] == [
        ("vgg-1", 5),
        ("vgg-2", 6),
        ("vgg-3", 7),
    ]
    programs = parse_jobs(
        "{name: p, workers: 1, command: ./run, environment: {A: b}, array: 2}"
    )
    assert [s.environment for s in programs.specs] == [
        {"A": "b", "ARRAY_INDEX": "1"},
        {"A": "b", "ARRAY_INDEX": "2"},
    ]


def test_what_a_command_line_says_goes_before_the_file() -> None:
    given = Overrides(
        {"workers": 2, "gradient": 8, "retries": 1},
        {"seed": [("1", 1), ("2", 2)]},
        2,
    )
    jobs = parse_jobs(
        ONE + "seed: 9\nsweep: {seed: [3]}\narray: 4", given=given
    )
    assert [s.name for s in jobs.specs] == [
        f"vgg-seed-{seed}-{n}" for seed in (1, 2) for n in (1, 2)
    ]
    assert {(s.workers, s.gradient_bytes, s.retries) for s in jobs.specs} == {
        (2, 8, 1)
    }
    (spec,) = parse_jobs(
        ONE, given=Overrides({"hosts": ("gpu0", "gpu1")})
    ).specs
    assert (spec.workers, spec.hosts) == (0, ("gpu0", "gpu1"))
    with pytest.raises(JobFileError, match="options need a file with one job"):
        parse_jobs(GANG, given=given)


def test_values_of_a_command_line_are_read_as_in_a_file() -> None:
    assert value_of(Defaults, "workers", "auto") == 0
    assert value_of(Defaults, "hosts", "gpu0, server1.gpu2") == (
        "gpu0",
        "server1.gpu2",
    )
    assert value_of(Defaults, "gpu_models", "3090,Titan V") == (
        "3090",
        "Titan V",
    )
    assert value_of(Defaults, "deadline", "2h") == 7200.0
    assert value_of(Sweep, "deadline", "1h,30min") == (
        ("1h", 3600.0),
        ("30min", 1800.0),
    )
    with pytest.raises(BadInput, match="'' is not a size"):
        value_of(Defaults, "gradient", "")


# Below each message: what stands there, or nothing where a key is added, and what stands there
# instead; ‸ is where the mistake is.
OF_ONE = mistakes("""
unknown key 'worker' in a job file: did you mean 'workers'?
    workers ⇒ ‸worker
expected a gradient's size with its unit, like '553MB', found
    553MB ⇒ ‸553
expected a number with one of B, kB, MB
    553MB ⇒ ‸553Mbit
'2B' is not a gradient's size: expected 4B to
    553MB ⇒ ‸2B
'30h' is not a compute time: expected more than 0s, at most
    500ms ⇒ ‸30h
'many' workers: expected 1 to 65536, or auto
    4⏎ ⇒ ‸many⏎
'0' workers: expected 1 to 65536, or auto
    4⏎ ⇒ ‸0⏎
'v g g' is not a job's name: expected a letter or digit
    vgg ⇒ ‸v g g
duplicate key 'name', first on line 1
     ⇒ ‸name: b
expected a number of restarts, a whole number from 0 to 100
     ⇒ retries: ‸101
degrees need 'workers: auto'
     ⇒ degrees: ‸[2]
expected a deadline or a requirement, not both
     ⇒ deadline: ‸1h⏎requirement: 1
image: only for jobs with trainer torch or command
     ⇒ image: ‸a
data: only for jobs with trainer torch
     ⇒ data: ‸/a
'udp' is not a transport: expected one of tcp, rdma
     ⇒ transport: ‸udp
with trainer command needs a command
     ⇒ trainer: ‸command
a job needs 'workers' or 'hosts'
    name: vgg⏎workers: 4⏎ ⇒ name: ‸vgg⏎
'' is not a job: expected 1 to 4096 characters
     ⇒ after: [a, ‸'']
graph 'no-such-graph' not found: expected a graph file, or
     ⇒ graph: ‸no-such-graph
unknown key 'image' in a sweep: expected one of workers
     ⇒ sweep: {‸image: [a]}
expected a number of workers, a whole number from 1 to
     ⇒ sweep: {workers: [2, ‸x]}
a sweep over workers: expected distinct values
     ⇒ sweep: ‸{workers: [2, 2]}
     ⇒ sweep: ‸{workers: []}
this makes 1,002 jobs: expected at most 1,000
     ⇒ sweep: ‸{seed: [1, 2]}⏎array: 501
expected a number of jobs, a whole number from 1 to 1000
     ⇒ array: ‸1001
'defaults' are for several jobs: expected 'jobs'
    name: vgg ⇒ defaults: ‸{seed: 1}⏎name: vgg
""")
OF_GANG = mistakes("""
'name' cannot be combined with 'jobs': expected it in a job or in 'defaults'
     ⇒ name: ‸c
'array' cannot be combined with 'jobs': expected it in a file with one job
     ⇒ array: ‸2
duplicate job name 'a', first on line 3
    name: b ⇒ name: ‸a
'a' starts at the same time
    iterations: 6 ⇒ after: ‸a
a job lacks 'name': expected the job's name
    - {name: a,  ⇒ - ‸{
""")
OTHERS = below("""
transport: only for synthetic jobs; others choose their own
    name: a⏎workers: 1⏎command: x⏎transport: ‸rdma
unknown model 'vgg1': did you mean
    name: a⏎workers: 1⏎iterations: 1⏎model: ‸vgg1
a torch job needs iterations
    name: ‸a⏎workers: 1⏎model: vgg16
expected a mini-batch, a whole
    name: a⏎workers: 1⏎model: vgg16⏎batch: ‸0
a synthetic job needs iterations, gradient, compute
    name: ‸a⏎workers: 1
'/data' is not a mount: expected SOURCE
    name: a⏎workers: 1⏎command: x⏎mounts: [‸/data]
'data' is not
    name: a⏎workers: 1⏎command: x⏎mounts: [‸'data:/data']
'A B' is not an environment variable
    name: a⏎workers: 1⏎command: x⏎environment: {‸A B: c}
Patchlight sets RANK for each rank: leave it out
    name: a⏎workers: 1⏎command: x⏎environment: {‸RANK: 1}
is longer than 41 characters
    name: ‸nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn⏎workers: 1⏎command: x⏎array: 100
0 jobs: expected 1 to 1,000
    jobs: ‸[]
a mount lacks 'target': expected where
    name: a⏎workers: 1⏎command: x⏎mounts: [‸{source: /a}]
unknown key 'x' in a mount
    name: a⏎workers: 1⏎command: x⏎mounts: [{source: /a, target: /b, ‸x: 1}]
expected SOURCE:TARGET, or SOURCE:TARGET:rw, like '/srv/data:/data', found the number 3
    name: a⏎workers: 1⏎command: x⏎mounts: ["/a:/b", ‸3]
'' is not a shell line: expected 1
    name: a⏎workers: 1⏎command: ‸''
expected a job's 'name', or 'jobs'
    ‸workers: 2
expected a job file, found a list
    ‸- name: a
""")


def changed(text: str, good: str, bad: str) -> str:
    return text.replace(good, bad, 1) if good else text + bad


@pytest.mark.parametrize(
    ("marked", "message"),
    [
        *((changed(ONE, good, bad), message) for good, bad, message in OF_ONE),
        *(
            (changed(GANG, good, bad), message)
            for good, bad, message in OF_GANG
        ),
        *OTHERS,
        (
            ONE.replace("4", "‸4", 1) + "hosts: [a, b]",
            "4 workers and 2 hosts: expected one of the two",
        ),
        (
            ONE.replace("553MB", "‸553MB") + "model: vgg16",
            "a job with a model takes the model's own",
        ),
    ],
)
def test_each_mistake_is_told_at_its_place(marked: str, message: str) -> None:
    text, line, column = unmarked(marked)
    with pytest.raises(JobFileError) as caught:
        parse_jobs(text, "f")
    assert str(caught.value).startswith(f"f:{line}:{column}: "), str(
        caught.value
    )
    assert message in str(caught.value)


def test_all_mistakes_are_told_at_once() -> None:
    wrong = (
        ONE.replace("553MB", "553").replace("500ms", "500")
        + "retries: x\ncolour: red"
    )
    with pytest.raises(JobFileError) as caught:
        parse_jobs(wrong)
    assert [issue.line for issue in caught.value.issues] == [4, 5, 6, 7]


def test_each_item_of_a_list_may_be_wrong() -> None:
    with pytest.raises(JobFileError) as caught:
        parse_jobs(
            "name: a\nworkers: auto\ndegrees: [x, 2, y]\nhosts: [[], 3]"
        )
    assert [(each.line, each.column) for each in caught.value.issues] == [
        (3, 11),
        (3, 17),
        (4, 9),
        (4, 13),
    ]


def test_a_text_that_explodes_is_refused() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for name, before in zip("bcdefghij", "abcdefghi", strict=True):
        bomb += f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    with pytest.raises(JobFileError, match="aliases repeat more than"):
        parse_jobs(bomb)


def test_a_graph_file_is_found_beside_the_job_file(tmp_path: Path) -> None:
    graph = (
        "node1 -- Input -- forward_compute_time=1, backward_compute_time=2, "
    )
    graph += "activation_size=4, parameter_size=8"
    (tmp_path / "small.txt").write_text(graph)
    file = tmp_path / "job.yaml"
    file.write_text(ONE + "graph: small.txt")
    assert read_jobs(file).specs[0].graph == str(tmp_path / "small.txt")
    (tmp_path / "small.txt").write_text("not a graph")
    with pytest.raises(
        JobFileError, match=r"job.yaml:6:8: .*small.txt:1:1: cannot read"
    ):
        read_jobs(file)


def test_a_file_that_is_not_there_says_what_was_expected(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        JobFileError, match=r"No such file.*expected a job file"
    ):
        read_jobs(tmp_path / "none.yaml")


def test_jobs_are_meant_by_value_by_mapping_and_by_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(ONE)
    mapping = yaml.safe_load(ONE.replace("1_000", "1000"))
    spec = parse_jobs(ONE).specs[0]
    assert jobs_meant([spec, mapping, file, str(file)]).specs == (spec,) * 4
    with pytest.raises(BadInput, match="start one by one"):
        jobs_meant([spec, {**mapping, "array": 2}])
    with pytest.raises(
        BadInput, match=r"^unknown key 'worker' in a job file: did you mean"
    ):
        jobs_of({**mapping, "worker": 1})
    with pytest.raises(BadInput, match="may contain only texts, numbers"):
        jobs_of({**mapping, "graph": tmp_path})


@pytest.mark.parametrize(
    "text", [ONE, EVERYTHING, GANG, ONE + "sweep: {seed: [1]}\narray: 2"]
)
def test_the_schema_for_editors_takes_what_is_good(text: str) -> None:
    document = yaml.safe_load(text.replace("1_000", "1000"))
    Draft202012Validator(json_schema()).validate(document)


@pytest.mark.parametrize(
    "wrong",
    [
        {"worker": 1},
        {"gradient": 5},
        {"workers": "many"},
        {"jobs": []},
        {"array": 0},
    ],
)
def test_the_schema_for_editors_knows_mistakes(wrong: dict[str, Any]) -> None:
    assert not Draft202012Validator(json_schema()).is_valid(
        {"name": "a", **wrong}
    )


def test_the_files_of_examples_and_of_the_page_are_good() -> None:
    root = Path(__file__).parents[3]
    for file in (root / "examples" / "jobs").glob("*.yaml"):
        assert read_jobs(file).specs
    shown = re.findall(
        r"^```yaml\n(.*?)^```$",
        (root / "docs" / "jobs.md").read_text(),
        re.M | re.S,
    )
    of_labs = [
        text for text in shown if text.startswith(("policies:", "queue:"))
    ]
    assert len(shown) - len(of_labs) == 5
    assert all(parse_jobs(text).specs for text in shown if text not in of_labs)
    lab = builtin_lab("ofc2022").read_text()
    assert all(parse_lab(lab + text) for text in of_labs)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*KEYS, "jobs", "sweep", "M"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from([*KEYS, "jobs", "defaults", "sweep", "array"]), values
    )
)
def test_whatever_stands_there_is_read_or_refused_in_words(
    changes: dict[str, Any],
) -> None:
    base = {
        "name": "a",
        "workers": 2,
        "iterations": 1,
        "gradient": "4B",
        "compute": {"M": "1s"},
    }
    specs: list[JobSpec] = []
    with contextlib.suppress(JobFileError):
        specs += parse_jobs(json.dumps({**base, **changes})).specs
    assert checked_specs(specs) == specs
