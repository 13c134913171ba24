"""What a worker may not ask for."""

from pathlib import Path

import pytest

from patchlight.agents.errors import AgentError, BadRequest, Forbidden
from patchlight.agents.permitted import permitted
from patchlight.testbed.worker_api import WorkerSpec


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
