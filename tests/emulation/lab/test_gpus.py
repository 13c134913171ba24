"""Emulated GPUs, through the clients that workers and agents use."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from ipaddress import IPv4Network
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from patchlight.agents.errors import GpuError, GpuSilent
from patchlight.agents.gpus import SILENT_S, Pulse, SocketGpus
from patchlight.agents.training.task import SocketGpu as GpuClient
from patchlight.agents.training.task import TrainingError
from patchlight.emulation.lab.gpus import BusyMeter, gpu_uuid, serve
from patchlight.testbed.jobs import LONGEST_COMPUTE_S
from patchlight.testbed.lab.model import Gpu, Lab, Server
from tests.support.waiting import (
    PATIENCE_S,
    eventually,
    unix_socket_answers,
    wait_until,
)

SERVER = Server(
    "server1",
    None,
    (Gpu("gpu0", "Tesla M40"), Gpu("gpu1", "Titan V", "GPU-77")),
    (),
)
LAB = Lab("lab", IPv4Network("10.0.0.0/24"), (SERVER,))


@given(
    st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), max_size=20),
    st.floats(0, 3),
)
def test_utilisation_is_the_busy_part_of_the_last_second(
    phases: list[tuple[float, float]], idle_s: float
) -> None:
    meter = BusyMeter()
    now = 100.0
    busy = []
    for pause_s, work_s in phases:
        now += pause_s
        meter.begin(now)
        busy.append((now, now + work_s))
        now += work_s
        meter.end(now)
    now += idle_s
    within = sum(
        max(0.0, min(end, now) - max(begin, now - 1)) for begin, end in busy
    )
    assert meter.utilization(now) == pytest.approx(min(1.0, within), abs=1e-6)
    assert meter.busy_s(now) == pytest.approx(
        sum(end - begin for begin, end in busy)
    )


def test_a_gpu_that_is_computing_counts_as_busy_until_now() -> None:
    meter = BusyMeter()
    meter.begin(10.0)
    assert meter.utilization(10.25) == pytest.approx(0.25)
    assert meter.utilization(15.0) == 1.0
    assert meter.busy_s(15.0) == 5.0
    meter.end(15.0)
    meter.end(16.0)
    assert meter.busy_s(16.0) == 5.0
    assert meter.utilization(15.5) == pytest.approx(0.5)


@pytest_asyncio.fixture
async def backend(tmp_path: Path) -> AsyncIterator[SocketGpus]:
    """An agent's view of the lab's GPUs, which are served."""
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(LAB, tmp_path, stop))
    backend = SocketGpus(SERVER, tmp_path)
    await backend.open()
    yield backend
    stop.set()
    await serving
    assert os.listdir(tmp_path) == []


async def test_a_gpu_computes_for_one_tenant_at_a_time(
    backend: SocketGpus, tmp_path: Path
) -> None:
    path = str(tmp_path / "server1.gpu0.sock")

    def tenant() -> tuple[float, float]:
        gpu = GpuClient(path, "a")
        with pytest.raises(TrainingError, match="in use by a"):
            GpuClient(path, "b", deadline_s=0)
        began = time.monotonic()
        gpu.begin(0.3)
        gpu.finish()
        took_s = time.monotonic() - began
        gpu.close()
        GpuClient(path, "b").close()
        return began, took_s

    began, took_s = await asyncio.to_thread(tenant)
    assert took_s >= 0.29
    reading = await backend.read("gpu0")
    assert (reading.model, reading.uuid) == (
        "Tesla M40",
        gpu_uuid(LAB, "server1", "gpu0"),
    )
    assert 0.29 <= reading.busy_s <= took_s
    assert reading.utilization is not None
    assert reading.utilization <= reading.busy_s
    if (
        time.monotonic() < began + 1.25
    ):  # else its work may be more than a second ago
        assert reading.utilization > 0
    other = await backend.read("gpu1")
    assert (other.uuid, other.busy_s, other.utilization) == ("GPU-77", 0, 0)


async def test_a_gpu_stops_computing_when_its_tenant_dies(
    backend: SocketGpus, tmp_path: Path
) -> None:
    gpu = await asyncio.to_thread(
        GpuClient, str(tmp_path / "server1.gpu0.sock"), "a"
    )
    gpu.begin(LONGEST_COMPUTE_S)  # What a job file may ask for.
    busy_s = [0.0]

    async def computes() -> bool:
        busy_s.append((await backend.read("gpu0")).busy_s)
        return busy_s[-1] > busy_s[-2]

    async def stands_still() -> bool:
        return not await computes()

    await eventually(computes)
    gpu.close()
    await eventually(stands_still)


@pytest.mark.usefixtures("backend")
async def test_nonsense_is_answered_with_an_error(tmp_path: Path) -> None:
    reader, writer = await asyncio.open_unix_connection(
        tmp_path / "server1.gpu0.sock"
    )
    for request, error in [
        (b"nonsense", "not a request"),
        (b'{"op": "fly"}', "unknown operation"),
        (b'{"op": "occupy", "seconds": 1}', "attach first"),
        (b'{"op": "attach", "tenant": "a"}', None),
        (b'{"op": "occupy", "seconds": -1}', "cannot compute"),
        (b'{"op": "occupy", "seconds": NaN}', "cannot compute"),
        (b'{"op": "occupy", "seconds": Infinity}', "cannot compute"),
        (b'{"op": "occupy", "seconds": 0}', None),
    ]:
        writer.write(request + b"\n")
        reply = json.loads(await reader.readline())
        assert reply["ok"] is (error is None), reply
        assert error is None or error in reply["error"]
    writer.close()


def test_the_process_serves_a_lab_file_until_it_is_told_to_stop(
    tmp_path: Path,
) -> None:
    lab_file = tmp_path / "lab.yaml"
    lab_file.write_text(
        "name: lab\nnetwork: 10.0.0.0/24\nservers:\n"
        "  - name: server1\n"
        "    gpus: [{name: gpu0, model: Tesla M40}, {name: gpu1, model: Titan V}]\n"
        "    nics: [{name: nic0, address: 10.0.0.1, gpu: gpu0},"
        " {name: nic1, address: 10.0.0.2, gpu: gpu1}]\n"
    )
    folder = tmp_path / "gpus"
    command = [sys.executable, "-m", "patchlight.emulation.lab.gpus"]
    command += ["--lab", str(lab_file), "--dir", str(folder)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        backend = SocketGpus(SERVER, folder)
        wait_until(lambda: unix_socket_answers(folder / "server1.gpu1.sock"))
        assert asyncio.run(backend.read("gpu1")).model == "Titan V"
        # Whatever a worker sends costs its connection, and no line of the log.
        for nonsense in (
            b"x" * 100_000,
            b"[" * 60_000 + b"\n",
            b'{"op": "occupy"}\n',
        ):
            with (
                socket.socket(socket.AF_UNIX) as worker,
                contextlib.suppress(ConnectionError),
            ):
                worker.connect(str(folder / "server1.gpu1.sock"))
                worker.sendall(nonsense)
                worker.recv(1)
        assert asyncio.run(backend.read("gpu1")).model == "Titan V"
    finally:
        process.terminate()
        _, said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said) == (0, "")
    assert list(folder.iterdir()) == []


def test_a_gpu_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    backend = SocketGpus(SERVER, tmp_path, deadline_s=0.1)
    asyncio.run(backend.open())  # the others may be there
    with pytest.raises(GpuError, match=r"GPU gpu0 has no socket .*gpu0\.sock"):
        asyncio.run(backend.read("gpu0"))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "server1.gpu0.sock"))
    with pytest.raises(
        GpuError, match=r"reading GPU gpu0 at .*sock: .*Connection refused"
    ):
        asyncio.run(backend.read("gpu0"))
    (tmp_path / "server1.gpu0.sock").unlink()
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(tmp_path / "server1.gpu0.sock"))
        busy.listen()
        with pytest.raises(
            GpuSilent,
            match=r"reading GPU gpu0 at .*sock: no answer after 0.1 s",
        ):
            asyncio.run(backend.read("gpu0"))
        with pytest.raises(GpuSilent, match=r"no answer after 0.2 s"):
            asyncio.run(backend.read("gpu0"))


def test_a_gpu_is_gone_after_a_long_silence_that_was_heard() -> None:
    silent = GpuSilent("no answer")
    pulse = Pulse()
    # Nobody looked for a minute: the silence begins now.
    assert not pulse.is_gone(silent, 60.0)
    assert not pulse.is_gone(silent, 60.0 + SILENT_S)
    assert pulse.is_gone(silent, 61.0 + SILENT_S)
    few = Pulse()
    assert not few.is_gone(silent, 60.0)
    assert not few.is_gone(silent, 120.0), "two readings are no proof"


def test_a_gpu_that_reports_errors_three_times_is_gone() -> None:
    pulse = Pulse()
    lost = GpuError("GPU is lost")
    assert [pulse.is_gone(lost, 1.0) for _ in range(3)] == [False, False, True]
