"""What a worker may not ask for."""

from pathlib import Path

import pytest

from patchlight.agents.errors import AgentError, BadRequest, Forbidden
from patchlight.agents.permitted import permitted
from patchlight.agents.workers.limits import limits_of
from patchlight.testbed.commands import CommandTask
from patchlight.testbed.worker_api import WorkerSpec
from patchlight.testbed.worker_policy import WorkerPolicy


def spec(source: str, target: str = "/data", checkpoint: str | None = None) -> WorkerSpec:
    return WorkerSpec.model_validate(
        {
            **{"id": "w", "job": "j", "rank": 0, "nic": "nic0", "checkpoint": checkpoint},
            "ring": [{"rank": 0, "address": "10.0.0.1", "port": 29500}],
            "task": {
                "trainer": "command",
                "command": ["true"],
                "mounts": [{"source": source, "target": target}],
            },
        }
    )


@pytest.mark.parametrize(
    "source",
    ["/", "//", "/etc", "//etc/ssl", "/proc/1", "/sys", "/dev/mem", "/run", "/var/run/docker.sock"],
)
def test_what_belongs_to_the_server_is_refused(source: str, tmp_path: Path) -> None:
    with pytest.raises(Forbidden, match="is for no worker"):
        permitted(spec(source))
    with pytest.raises(Forbidden, match="is for no worker"):
        permitted(spec(str(tmp_path), checkpoint=source))
    link = tmp_path / "link"
    link.symlink_to(source)
    with pytest.raises(Forbidden, match="is for no worker"):
        permitted(spec(str(link)))


def test_samples_of_a_model_are_files_like_others(tmp_path: Path) -> None:
    def of(data: str) -> WorkerSpec:
        task = {"trainer": "torch", "model": "vgg16", "iterations": 1, "data": data}
        return WorkerSpec.model_validate({**spec("/srv").model_dump(mode="json"), "task": task})

    permitted(of(str(tmp_path)))
    with pytest.raises(Forbidden, match="is for no worker"):
        permitted(of("/etc/ssl"))
    with pytest.raises(BadRequest, match="which this server has not"):
        permitted(of(str(tmp_path / "none")))


@pytest.mark.parametrize(
    "target", ["/", "/proc", "/run/worker", "/data/../run", "//opt/patchlight"]
)
def test_what_is_made_for_a_worker_is_not_hidden(target: str, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="nothing can be mounted"):
        permitted(spec(str(tmp_path), target))


def test_data_may_be_mounted_where_it_is(tmp_path: Path) -> None:
    permitted(spec(str(tmp_path), "/opt/data", checkpoint=str(tmp_path)))
    with pytest.raises(AgentError, match="which this server has not"):
        permitted(spec(str(tmp_path / "none")))


def test_the_lab_says_which_folders_workers_may_see(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    for folder in (data / "sets", other):
        folder.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(data)
    policy = WorkerPolicy(mounts=(str(link),))
    for allowed in (data, data / "sets", link / "sets"):
        permitted(spec(str(allowed), checkpoint=str(data)), policy)
    for refused in (other, tmp_path, data / ".." / "other"):
        with pytest.raises(Forbidden, match="lets workers see no such folder") as raised:
            permitted(spec(str(refused)), policy)
        assert f"those that it does: {link}" in str(raised.value.hint)
    with pytest.raises(Forbidden, match="lets workers see no such folder"):
        permitted(spec(str(data), checkpoint=str(other)), policy)
    # What no lab allows, this one does not either.
    with pytest.raises(Forbidden, match="is for no worker"):
        permitted(spec("/etc"), WorkerPolicy(mounts=("/etc",)))


def test_the_lab_says_which_images_and_how_much_of_a_server(tmp_path: Path) -> None:
    asked = spec(str(tmp_path))
    assert isinstance(asked.task, CommandTask)
    task = asked.task.model_copy(update={"image": "evil/miner:1"})
    asked = asked.model_copy(update={"task": task, "memory_bytes": 2**34, "cpus": 8.0})
    permitted(asked)
    permitted(asked, WorkerPolicy(images=("a", "evil/*"), memory_bytes=2**34, cpus=8))
    for policy, words in (
        (WorkerPolicy(images=("pytorch/*",)), "the image evil/miner:1, which the lab allows to no"),
        (WorkerPolicy(images=()), "allows to no worker"),
        (WorkerPolicy(memory_bytes=2**33), "17.18GB of memory: the lab allows 8.59GB"),
        (WorkerPolicy(cpus=4), "asks for 8 CPUs: the lab allows 4"),
    ):
        with pytest.raises(Forbidden, match=words):
            permitted(asked, policy)
    # Without a word of its own a worker gets what the lab allows at most.
    plain = spec(str(tmp_path))
    permitted(plain, WorkerPolicy(images=(), memory_bytes=2**33, cpus=4))
    limits = limits_of(plain, None, 2**40, WorkerPolicy(memory_bytes=2**33, cpus=4))
    assert (limits.memory_bytes, limits.processes, limits.cpus) == (2**33, 4096, 4)
    assert limits_of(asked, None, 2**40, WorkerPolicy()).memory_bytes == 2**34
