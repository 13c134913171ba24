"""How a container gets one GPU, and that a worker which sees anything else runs nothing.

There is no NVIDIA GPU here: CDI files, device nodes and the driver's files in ``/proc`` are made.
"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from patchlight.agents.errors import LaunchError
from patchlight.agents.gpus import PhysicalGpu
from patchlight.agents.workers import keeper
from patchlight.agents.workers.keeper import read_state
from patchlight.agents.workers.limits import container_settings, find_access
from patchlight.testbed.errors import BadInput
from patchlight.testbed.wire.worker_api import WorkerState
from tests.support.waiting import PATIENCE_S

GPU = PhysicalGpu("GPU-b", minor=3)
NEW = {"ServerVersion": "28.2.2"}
OLD = {"ServerVersion": "20.10.24+dfsg1"}


def cdi_file(path: Path, *names: tuple[str, int]) -> None:
    """As ``nvidia-ctk cdi generate`` writes one."""
    devices = [
        {
            "name": name,
            "containerEdits": {
                "deviceNodes": [
                    {"path": f"/dev/nvidia{minor}"},
                    {"path": "/dev/dri/card1"},
                ]
            },
        }
        for name, minor in names
    ]
    both = [{"path": f"/dev/nvidia{minor}"} for _, minor in names]
    devices.append({"name": "all", "containerEdits": {"deviceNodes": both}})
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": devices,
    }
    path.write_text(
        yaml.safe_dump(spec) if path.suffix == ".yaml" else json.dumps(spec)
    )


def test_the_way_that_a_server_has_is_found(tmp_path: Path) -> None:
    cdi = tmp_path / "cdi"
    programs = tmp_path / "bin"
    cdi.mkdir()
    programs.mkdir()

    def found(engine: Mapping[str, object], choice: str = "auto") -> str:
        return find_access(
            choice, engine, [tmp_path / "none", cdi], str(programs)
        )

    assert found(NEW) == ""
    assert found({**OLD, "Runtimes": {"runc": {}, "nvidia": {}}}) == "runtime"
    hook = programs / "nvidia-container-runtime-hook"
    hook.touch(mode=0o755)
    assert found({**OLD, "Runtimes": {"nvidia": {}}}) == "request"
    (cdi / "broken.yaml").write_text("kind: nvidia.com/gpu\ndevices: 7\n")
    (cdi / "net.json").write_text(
        '{"kind": "example.com/net", "devices": [{"name": "0"}]}'
    )
    assert found(NEW) == "request"
    cdi_file(cdi / "nvidia.yaml", ("0", 2), ("1", 3))
    assert found(NEW) == "cdi"
    assert found(OLD) == "request"  # an engine that knows no CDI
    assert found(OLD, "cdi") == "cdi"
    with pytest.raises(BadInput, match="expected auto, cdi, request, runtime"):
        found(NEW, "magic")


@pytest.mark.parametrize("name", ["nvidia.yaml", "nvidia.json"])
def test_a_gpu_is_pinned_by_cdi_by_its_uuid_or_its_node(
    name: str, tmp_path: Path
) -> None:
    cdi_file(tmp_path / name, ("0", 2), ("1", 3))
    settings = container_settings("cdi", GPU, [tmp_path])
    assert settings["device_requests"] == [
        {"driver": "cdi", "device_ids": ["nvidia.com/gpu=1"]}
    ]
    # Else NVIDIA's runtime would add what the image says beside it.
    assert settings["environment"] == {"NVIDIA_VISIBLE_DEVICES": "void"}
    cdi_file(tmp_path / name, ("GPU-a", 2), ("GPU-b", 3), ("1", 3))
    (request,) = container_settings("cdi", GPU, [tmp_path])["device_requests"]
    assert request["device_ids"] == ["nvidia.com/gpu=GPU-b"]
    with pytest.raises(
        LaunchError, match="no CDI device for GPU GPU-c"
    ) as raised:
        container_settings("cdi", PhysicalGpu("GPU-c", minor=9), [tmp_path])
    assert "nvidia-ctk cdi generate" in str(raised.value.hint)


def test_a_gpu_is_pinned_by_its_uuid_in_the_other_ways() -> None:
    settings = container_settings("request", GPU)
    assert settings["device_requests"][0]["device_ids"] == ["GPU-b"]
    settings = container_settings("runtime", GPU)
    assert (
        settings["runtime"],
        settings["environment"]["NVIDIA_VISIBLE_DEVICES"],
    ) == (
        "nvidia",
        "GPU-b",
    )
    with pytest.raises(
        LaunchError, match="cannot give a container the GPU GPU-b"
    ) as raised:
        container_settings("", GPU)
    assert "NVIDIA Container Toolkit" in str(raised.value.hint)


class Inside:
    """What a worker sees of its server, under a folder in place of ``/``."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.worker = folder / "worker"
        self.worker.mkdir()
        (self.root / "dev").mkdir(parents=True)
        for node in ("nvidiactl", "nvidia-uvm", "null"):
            (self.root / "dev" / node).touch()

    def node(self, minor: int) -> None:
        (self.root / f"dev/nvidia{minor}").touch()

    def driver_says(self, minor: int, uuid: str) -> None:
        card = self.root / f"proc/driver/nvidia/gpus/0000:{minor:02x}:00.0"
        card.mkdir(parents=True)
        text = f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
        (card / "information").write_text(text)

    def run(self, gpu: PhysicalGpu | None, path: str = "/usr/bin:/bin") -> int:
        command = keeper.kept(
            ["touch", str(self.worker / "ran")],
            str(self.worker),
            gated=False,
            waited_for=True,
            gpu=gpu,
            root=str(self.root),
        )
        command[0] = "/bin/sh"
        return subprocess.run(
            command, env={"PATH": path}, timeout=PATIENCE_S, check=False
        ).returncode

    @property
    def ran(self) -> bool:
        return (self.worker / "ran").exists()


@pytest.fixture
def inside(tmp_path: Path) -> Inside:
    return Inside(tmp_path)


def test_a_worker_that_sees_its_gpu_alone_runs(inside: Inside) -> None:
    inside.node(3)
    assert inside.run(GPU) == 0  # the node's number is the server's
    # Some runtimes show all that the driver says of the server, and the nodes of one.
    inside.driver_says(2, "GPU-a")
    inside.driver_says(3, "GPU-b")
    assert inside.run(GPU) == 0
    assert inside.run(PhysicalGpu("GPU-b")) == 0
    assert inside.ran


def test_a_worker_without_a_gpu_is_not_looked_at(inside: Inside) -> None:
    inside.node(3)
    inside.node(4)
    assert inside.run(None) == 0
    assert inside.ran


@pytest.mark.parametrize(
    ("nodes", "uuids", "words"),
    [
        ([], {}, "needs the GPU GPU-b but sees no GPU"),
        (
            [2, 3],
            {3: "GPU-b"},
            "may only have the GPU GPU-b but sees nvidia2 nvidia3",
        ),
        ([2], {2: "GPU-a"}, "needs the GPU GPU-b, but nvidia2 is GPU-a"),
        ([2], {}, "needs the GPU GPU-b, but nvidia2 is of unknown UUID"),
    ],
)
def test_a_worker_that_sees_anything_else_runs_nothing_and_says_why(
    inside: Inside, nodes: list[int], uuids: dict[int, str], words: str
) -> None:
    for minor in nodes:
        inside.node(minor)
    for minor, uuid in uuids.items():
        inside.driver_says(minor, uuid)
    assert inside.run(GPU, path="/nowhere") == 126
    assert not inside.ran
    state = read_state(inside.worker)
    assert state.state is WorkerState.FAILED
    assert words in state.message
    assert words in (inside.worker / keeper.OUTPUT).read_text()
    assert keeper.exit_code(inside.worker) == (126, "")


def test_where_the_driver_says_nothing_its_tool_is_believed(
    inside: Inside, tmp_path: Path
) -> None:
    inside.node(0)
    programs = tmp_path / "bin"
    programs.mkdir()
    tool = programs / "nvidia-smi"
    one = "GPU 0: NVIDIA H200 (UUID: GPU-b)"
    other = "GPU 1: NVIDIA H200 (UUID: GPU-a)"
    for lines, code in (([one], 0), ([other], 126), ([one, other], 126)):
        tool.write_text(
            "#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines)
        )
        tool.chmod(0o755)
        assert inside.run(GPU, path=f"{programs}:/usr/bin:/bin") == code, lines
    assert "GPU-b GPU-a" in read_state(inside.worker).message
