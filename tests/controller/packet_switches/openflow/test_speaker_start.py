"""Starting and ending the speaker: engines, ports, namespaces, parents."""

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from patchlight.controller.packet_switches.openflow.client import (
    Speaker,
    SpeakerFailed,
    SpeakerProcess,
)
from patchlight.controller.packet_switches.openflow.flowtable import (
    SpeakerOptions,
)
from patchlight.testbed.linux import deploy_file
from patchlight.testbed.linux.processes import process_start
from tests.support.waiting import PATIENCE_S, eventually, wait_until

FREE = "127.0.0.1:0"
CONSTRAINT = deploy_file("ryu-constraint.txt").as_uri()


def options(
    path: Path,
    listen: str = FREE,
    *,
    engine: str | None = None,
    netns: str | None = None,
) -> SpeakerOptions:
    return SpeakerOptions(
        path / "speaker.sock", (1,), listen, netns=netns, engine=engine
    )


def failure(started: SpeakerOptions) -> SpeakerFailed:
    with pytest.raises(SpeakerFailed) as caught:
        asyncio.run(Speaker(started).start())
    return caught.value


def test_a_taken_port_says_which_and_by_whom(
    tmp_path: Path, engine: str, taken_port: int
) -> None:
    error = str(
        failure(options(tmp_path, f"127.0.0.1:{taken_port}", engine=engine))
    )
    assert f"TCP port {taken_port} is used by" in error
    assert f"(pid {os.getpid()})" in error
    assert "choose another port" in error


async def test_a_port_that_is_about_to_be_free_is_waited_for(
    tmp_path: Path, engine: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        asyncio.get_running_loop().call_later(1.0, holder.close)
        async with Speaker(
            options(tmp_path, f"127.0.0.1:{port}", engine=engine)
        ) as speaker:
            assert (await speaker.request("hello"))[
                "listen"
            ] == f"127.0.0.1:{port}"


async def test_a_second_speaker_on_the_socket_is_refused(
    tmp_path: Path, engine: str
) -> None:
    async with Speaker(options(tmp_path, engine=engine)) as first:
        with pytest.raises(
            SpeakerFailed, match="another OpenFlow speaker already serves"
        ):
            await Speaker(options(tmp_path, engine=engine)).start()
        assert (await first.request("hello"))["pid"] == first.pid
    assert not first.options.socket.exists()


async def test_the_socket_of_a_dead_speaker_is_taken_over(
    tmp_path: Path, engine: str
) -> None:
    first = Speaker(options(tmp_path, engine=engine))
    await first.start()
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    await first.close()
    assert first.options.socket.exists()
    async with Speaker(options(tmp_path, engine=engine)) as second:
        assert (await second.request("hello"))["engine"] == engine


async def test_a_speaker_is_started_again_whatever_an_attempt_fails_with(
    tmp_path: Path,
) -> None:
    failures: list[Exception] = [
        ZeroDivisionError("a bug"),
        OSError("no process"),
    ]

    async def launch(command: Sequence[str]) -> SpeakerProcess:
        if launches and failures:
            raise failures.pop()
        launches.append(command)
        return await SpeakerProcess.start(command)

    launches: list[Sequence[str]] = []
    async with Speaker(options(tmp_path), launch) as speaker:
        assert speaker.pid is not None
        os.kill(speaker.pid, signal.SIGKILL)
        await eventually(lambda: speaker.restarts, "it to run again")
        assert (await speaker.request("hello"))["pid"] == speaker.pid
    assert len(launches) == 2
    assert not failures


async def test_whoever_is_cancelled_while_a_speaker_closes_is_cancelled(
    tmp_path: Path,
) -> None:
    speaker = Speaker(options(tmp_path))
    await speaker.start()
    closing = asyncio.create_task(speaker.close())
    await asyncio.sleep(0)  # it waits for the end of the supervision
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    await speaker.close()
    assert speaker.pid is None


def test_the_speaker_ends_with_whoever_started_it(
    tmp_path: Path, engine: str
) -> None:
    program = f"""
import asyncio
from pathlib import Path
from patchlight.controller.packet_switches.openflow.flowtable import SpeakerOptions
from patchlight.controller.packet_switches.openflow.client import Speaker
async def run():
    speaker = Speaker(SpeakerOptions(Path({str(tmp_path / "s.sock")!r}), (1,), listen={FREE!r},
                                     engine={engine!r}))
    await speaker.start()
    print(speaker.pid, flush=True)
    await asyncio.sleep(60)  # until it is killed
asyncio.run(run())
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    wait_until(lambda: process_start(pid) is None, "the speaker to end")


def test_a_namespace_that_is_not_there(tmp_path: Path) -> None:
    error = str(failure(options(tmp_path, netns="/run/netns/pl.test-nowhere")))
    assert (
        "cannot enter the network namespace /run/netns/pl.test-nowhere: No such file"
        in error
    )


@pytest.mark.parametrize(
    "listen", ["6653", "127.0.0.1:port", "127.0.0.1:99999"]
)
def test_an_address_that_is_none(tmp_path: Path, listen: str) -> None:
    error = failure(options(tmp_path, listen))
    assert "expected host:port" in str(error)
    assert error.exit_code == 2


@pytest.mark.parametrize(
    ("missing", "engine", "expected"),
    [
        (
            ["ryu", "os_ken"],
            None,
            ["no OpenFlow engine is installed", "pip install os-ken"],
        ),
        (
            ["ryu"],
            "ryu",
            [
                "the OpenFlow engine ryu is not installed",
                f"PIP_CONSTRAINT={CONSTRAINT} pip install",
            ],
        ),
        (["os_ken"], "os-ken", ["pip install os-ken"]),
    ],
)
def test_a_missing_engine_says_how_to_install_it(
    tmp_path: Path, missing: list[str], engine: str | None, expected: list[str]
) -> None:
    arguments = options(tmp_path, engine=engine).command()[-1:]
    program = (
        f"import sys\nfor name in {missing!r}: sys.modules[name] = None\n"
        f"from patchlight.controller.packet_switches.openflow.speaker.__main__ import main\n"
        f"sys.exit(main({arguments!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert all(text in done.stderr for text in expected)


def broken(folder: Path, package: str) -> dict[str, str]:
    """The environment of a program whose Python is too new for this package."""
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text(
        "raise AttributeError('no ssl.wrap_socket')"
    )
    before = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep + before if before else ''}",
    }


def test_an_engine_that_python_is_too_new_for_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        options(tmp_path).command(),
        env=broken(tmp_path, "eventlet"),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 1
    assert "AttributeError: no ssl.wrap_socket" in done.stderr
    assert "use an older Python, because eventlet" in done.stderr
    assert "Traceback" not in done.stderr


async def test_where_ryu_does_not_run_os_ken_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", broken(tmp_path, "ryu")["PYTHONPATH"])
    async with Speaker(options(tmp_path)) as speaker:
        assert speaker.info["engine"] == "os-ken"


async def test_without_a_wish_the_first_engine_there_is_taken(
    tmp_path: Path,
) -> None:
    from patchlight.controller.packet_switches.openflow.speaker.__main__ import (
        available,
    )

    async with Speaker(options(tmp_path)) as speaker:
        assert speaker.info["engine"] == available()[0]


def program(lines: str) -> list[str]:
    return [sys.executable, "-c", lines]


async def test_a_speaker_is_waited_for_as_long_as_it_works() -> None:
    works = """
import time
until = time.monotonic() + 4
while time.monotonic() < until:
    sum(range(300_000))
    time.sleep(0.05)  # it works, and rests
print("ready", flush=True)
input()
"""
    process = await SpeakerProcess.start(program(works), quiet_s=2)
    assert process.running
    await process.stop()


async def test_a_speaker_that_does_nothing_is_given_up_and_ended() -> None:
    # It sleeps until it is ended.
    stuck = "import os, sys, time\nprint(os.getpid(), file=sys.stderr)\ntime.sleep(600)"
    with pytest.raises(
        SpeakerFailed, match="neither answers nor makes progress for 3 s"
    ) as caught:
        await SpeakerProcess.start(program(stuck), quiet_s=3)
    assert process_start(int(caught.value.hint or "")) is None


async def test_a_speaker_that_ends_instead_says_why() -> None:
    ends = (
        "import sys; print('error: no engine', file=sys.stderr); sys.exit(2)"
    )
    with pytest.raises(
        SpeakerFailed, match="the OpenFlow speaker ended: no engine"
    ) as caught:
        await SpeakerProcess.start(program(ends))
    assert caught.value.exit_code == 2


def test_what_is_no_openflow_does_not_fill_the_log(
    tmp_path: Path, engine: str
) -> None:
    hello, cut_short = (struct.pack("!BBHI", 4, kind, 8, 1) for kind in (0, 6))
    command = options(tmp_path, engine=engine).command()
    log = tmp_path / "log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as speaker,
    ):
        assert speaker.stdout is not None
        host, _, port = json.loads(speaker.stdout.readline())[
            "listen"
        ].rpartition(":")
        for _ in range(60):
            with socket.create_connection(
                (host, int(port)), PATIENCE_S
            ) as stranger:
                stranger.sendall(hello + cut_short)
                stranger.shutdown(socket.SHUT_WR)
                stranger.recv(4096)
        wait_until(
            lambda: "are suppressed for a minute" in log.read_text(),
            "the log's limit",
        )
        speaker.communicate(timeout=PATIENCE_S)
    assert 1 <= log.read_text().count("Traceback") <= 20
