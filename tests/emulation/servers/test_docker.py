"""Rehearsal servers have a Docker engine each, and nothing of it outlives them."""

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchlight import EmulatedLab
from patchlight.deploy.image_file import write_image
from patchlight.deploy.ssh import logged_in
from patchlight.emulation.lab.options import LabOptions
from patchlight.emulation.lab.services import reboot
from patchlight.emulation.servers.server import GROUPS, OURS
from patchlight.testbed.errors import BadInput
from tests.support.emulated_labs import left_of
from tests.support.waiting import PATIENCE_S

NAME = f"rd{os.getpid()}"
IMAGE = "small:1"
ONE = """
name: one
network: 192.168.10.0/24
servers: [{name: server1, nics: [{name: nic0, address: 192.168.10.11}]}]
packet_switches: [{name: tor1, datapath_id: 1, ports: 1}]
fibres: [server1.nic0 - tor1.1]
"""
RUN = "docker run --network none --memory 64m --pids-limit 20"
RUNS = "docker inspect --format {{.State.Running}} waits"


def image_with_a_shell(base: Path, folder: Path) -> Path:
    """An image that can run ``sh`` and nothing else."""
    root = folder / "root.tar"
    file = folder / "image.tar"
    with tarfile.open(root, "w", dereference=True) as tar:
        tar.add(base / "usr/bin/dash", "bin/sh")
        for library in ("libc.so.6", "ld-linux-*.so.*"):
            (path,) = (base / "usr/lib").glob(f"*-linux-gnu*/{library}")
            tar.add(path, f"lib/{path.parent.name}/{path.name}")
            tar.add(path, f"lib64/{path.name}")
    write_image(IMAGE, root, file, {})
    return file


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedLab]:
    path = tmp_path_factory.mktemp("lab") / "one.yaml"
    path.write_text(ONE)
    with EmulatedLab.from_file(
        path,
        name=NAME,
        servers="ssh",
        docker=True,
        fabric="bridge",
        controller=False,
    ) as lab:
        yield lab


def on_server(lab: EmulatedLab, command: str, file: Path | None = None) -> str:
    """What a command of root's writes that succeeds, with a file as its input."""
    with logged_in(lab.lab.servers[0]) as client:
        stdin, output, error = client.exec_command(
            f"sudo {command}", timeout=PATIENCE_S
        )
        if file is not None:
            stdin.write(file.read_bytes())
        stdin.channel.shutdown_write()
        text = output.read().decode().strip()
        assert output.channel.recv_exit_status() == 0, error.read().decode()
    return text


# A root file system that is not there yet is made first.
@pytest.mark.root
@pytest.mark.timeout(900)
def test_containers_run_below_the_server_and_go_with_it(
    lab: EmulatedLab, tmp_path: Path
) -> None:
    image = image_with_a_shell(Path(lab.state.base), tmp_path)
    assert IMAGE in on_server(lab, "docker load", image)
    assert on_server(lab, f"{RUN} {IMAGE} sh -c 'echo $((6 * 7))'") == "42"
    on_server(
        lab,
        f"{RUN} --detach --interactive --name waits {IMAGE} sh -c 'read line'",
    )
    assert on_server(lab, RUNS) == "true"
    # Its control group is one of the server's own.
    assert list(GROUPS.glob(f"**/{OURS}/{NAME}/server1/docker/*/cgroup.procs"))
    reboot(lab.lab, lab.plan, "server1", print)
    assert on_server(lab, RUNS) == "false"
    assert on_server(lab, "docker start waits") == "waits"
    lab.down()
    assert not list(GROUPS.glob(f"**/{OURS}/{NAME}"))
    assert left_of(NAME) == []


def test_it_is_for_servers_with_a_root_file_system() -> None:
    with pytest.raises(BadInput, match="docker needs servers='ssh'"):
        LabOptions(docker=True)
    with pytest.raises(BadInput, match="cannot run in real time"):
        LabOptions(docker=True, servers="ssh", real_time=True)
