"""``patchlight job submit`` and job files: what is queued, refused, or would come of it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.client.client import ControllerClient
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobfile.reader import JobFileError, parse_jobs
from patchlight.testbed.jobs import JobState
from tests.support.job_api import JobCommand
from tests.support.job_cluster import Cluster, simulated

ONE = """\
name: vgg
workers: 2
iterations: 5
gradient: 4MB
compute: {Tesla M40: 100ms, Titan V: 100ms}
"""
GANG = """\
defaults: {iterations: 5, gradient: 4MB, compute: {Tesla M40: 100ms}}
jobs:
  - {name: a, hosts: [gpu0]}
  - {name: b, hosts: [gpu2]}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    file = tmp_path / "vgg.yaml"
    file.write_text(ONE)
    return file


@simulated()
async def test_a_file_is_submitted_and_options_go_before_it(
    cluster: Cluster, spec: Path
) -> None:
    job = JobCommand(cluster)
    words = (
        "--workers",
        "1",
        "--retries",
        "2",
        "--compute",
        "Titan V=0.3s",
        "--regroup",
    )
    submitted = json.loads(await job("submit", str(spec), *words, "--json"))
    told = cluster.table[submitted["id"]].spec
    assert (told.name, told.workers, told.retries, told.gradient_bytes) == (
        "vgg",
        1,
        2,
        4_000_000,
    )
    assert (dict(told.compute_s), told.topology) == (
        {"Titan V": 0.3},
        "regroup",
    )


@simulated()
async def test_the_jobs_of_a_file_start_together(cluster: Cluster) -> None:
    job = JobCommand(cluster)
    printed = await job("submit", "-", text=GANG)
    first, second = printed.split()
    assert cluster.table[first].gang == cluster.table[second].gang


@simulated()
async def test_a_sweep_and_an_array_are_submitted_one_by_one(
    cluster: Cluster, spec: Path
) -> None:
    job = JobCommand(cluster)
    words = ("--sweep", "workers=2,4", "--sweep", "seed=1,2", "--array", "2")
    submitted = json.loads(await job("submit", str(spec), *words, "--json"))
    assert len(submitted) == 8
    assert submitted[0]["spec"]["name"] == "vgg-workers-2-seed-1-1"
    assert len({status["gang"] for status in submitted}) == 8


@simulated()
async def test_a_job_without_a_file_has_defaults(cluster: Cluster) -> None:
    job = JobCommand(cluster)
    printed = await job("submit", "plain", "--workers", "1")
    assert printed.startswith(
        "predicted to take 7.0 s, 2.0 s of it to start its workers; 0.500 s an iteration, "
        "it uses no link"
    )
    job_id = printed.split()[-1]
    told = cluster.table[job_id].spec
    assert (told.iterations, told.gradient_bytes) == (10, 553_000_000)
    assert dict(told.compute_s) == {"Tesla M40": 0.5, "Titan V": 0.5}


@simulated()
async def test_set_gives_any_key_of_a_job_file(
    cluster: Cluster, spec: Path
) -> None:
    job = JobCommand(cluster)
    words = (
        "--set",
        "dark_limit=2min",
        "--set",
        "hosts=[gpu0, gpu2]",
        "--set",
        "seed=7",
    )
    submitted = json.loads(await job("submit", str(spec), *words, "--json"))
    told = cluster.table[submitted["id"]].spec
    assert (told.dark_limit_s, told.hosts, told.seed) == (
        120.0,
        ("gpu0", "gpu2"),
        7,
    )


@simulated()
async def test_a_model_is_all_that_real_training_has_to_name(
    cluster: Cluster,
) -> None:
    job = JobCommand(cluster)
    words = (
        "--workers",
        "2",
        "--model",
        "resnet18",
        "--batch",
        "16",
        "--checkpoint",
        "/srv/kept",
    )
    job_id = (await job("submit", "real", *words)).split()[-1]
    told = cluster.table[job_id].spec
    assert (told.trainer, told.model, told.batch, told.iterations) == (
        "torch",
        "resnet18",
        16,
        10,
    )
    # Its own gradient, and nothing is said of how long it computes.
    assert (told.gradient_bytes, dict(told.compute_s)) == (4 * 11_689_512, {})
    assert "resnet18, trained by PyTorch, 16 samples a worker" in await job(
        "show", job_id
    )
    wrong = await job(
        "submit", "real", "--workers", "2", "--trainer", "torch", code=2
    )
    assert "a torch job needs model" in wrong
    wrong = await job("submit", "real", *words, "--gradient", "1MB", code=2)
    assert "gradient: a job with a model" in wrong


@simulated()
async def test_words_after_two_dashes_are_a_program(cluster: Cluster) -> None:
    job = JobCommand(cluster)
    words = (
        "--env",
        "A=b=c",
        "--mount",
        "/srv/data:/data:rw",
        "--",
        "python",
        "-u",
        "--lr",
        "1",
    )
    job_id = (await job("submit", "mine", "--workers", "1", *words)).split()[
        -1
    ]
    told = cluster.table[job_id].spec
    assert (told.trainer, told.command) == (
        "command",
        ("python", "-u", "--lr", "1"),
    )
    assert dict(told.environment) == {"A": "b=c"}
    assert [(m.source, m.target, m.read_only) for m in told.mounts] == [
        ("/srv/data", "/data", False)
    ]


@simulated()
async def test_a_job_waits_for_the_latest_of_a_name(
    cluster: Cluster, spec: Path
) -> None:
    job = JobCommand(cluster)
    first, second = [
        (await job("submit", str(spec))).split()[-1] for _ in range(2)
    ]
    job_id = (
        await job(
            "submit", "next", "--workers", "1", "--after", f"vgg,{first}"
        )
    ).split()[-1]
    assert cluster.table[job_id].spec.after == (second, first)


@simulated()
async def test_a_mistake_in_a_file_is_told_at_its_place(
    cluster: Cluster,
) -> None:
    job = JobCommand(cluster)
    printed = await job("submit", "-", text=ONE.replace("4MB", "4"), code=2)
    assert "standard input:4:11: expected a gradient's size" in printed
    assert cluster.table.page() == []


@simulated()
async def test_a_dry_run_says_what_would_come_of_it_and_queues_nothing(
    cluster: Cluster, spec: Path
) -> None:
    job = JobCommand(cluster)
    (job_id,) = cluster.submit(parse_jobs(GANG).specs[0])
    await cluster.until_state(job_id, JobState.RUNNING)
    words = ("--dry-run", "--sweep", "workers=2,6")
    rows = json.loads(await job("submit", str(spec), *words, "--json"))
    assert [len(row["hosts"]) for row in rows] == [2, 0]
    assert "server1.gpu0" not in rows[0]["hosts"]
    assert "it needs 6 GPUs" in rows[1]["waits_for"]
    printed = await job("submit", str(spec), *words)
    assert "starts on server" in printed
    assert " s an iteration, limited by the NIC of server" in " ".join(
        printed.split()
    )
    assert "waits: it needs 6 GPUs" in printed
    assert [status.id for status in cluster.table.page()] == [job_id]


@simulated()
async def test_python_submits_the_same_files_and_mappings(
    cluster: Cluster, spec: Path
) -> None:
    job = JobCommand(cluster)

    def submit() -> list[str]:
        with ControllerClient(job.api) as client:
            mapping = {"name": "c", "workers": 1, "command": "true"}
            return [status.id for status in client.submit([spec, mapping])]

    first, second = await job.run(submit)
    assert cluster.table[first].gang == cluster.table[second].gang
    assert cluster.table[second].spec.command == ("sh", "-c", "true")


def test_files_are_checked_without_a_controller(
    spec: Path, tmp_path: Path
) -> None:
    gang = tmp_path / "gang.yaml"
    wrong = tmp_path / "wrong.yaml"
    gang.write_text(GANG)
    wrong.write_text(ONE + "colour: red\nretries: x")
    nowhere = ("--dry-run", "--controller", "127.0.0.1:1")
    done = CliRunner().invoke(cli, ["job", "submit", str(gang), *nowhere])
    assert f"{gang} is valid (2 jobs: a, b), but no controller says" in str(
        done.exception
    )
    assert not isinstance(done.exception, BadInput)
    done = CliRunner().invoke(cli, ["job", "submit", str(wrong), *nowhere])
    assert isinstance(done.exception, JobFileError)
    assert [
        line.removeprefix(str(wrong))[:5]
        for line in str(done.exception).splitlines()
    ] == [
        ":6:1:",
        ":7:10",
    ]


def test_the_schema_is_printed() -> None:
    printed = json.loads(
        CliRunner().invoke(cli, ["lab", "check", "--schema", "job"]).output
    )
    assert printed["title"] == "Patchlight job file"
    assert "gradient" in printed["properties"]
