"""``patchlight status`` and ``top``: a lab on one screen."""

import asyncio
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import replace
from fcntl import ioctl
from pathlib import Path

import pytest

from patchlight.cli.status import Scrape, status_rows, uplink_rows
from patchlight.cli.top import JobPace, job_paces, screen
from tests.support.job_api import LabCommand
from tests.support.waiting import PATIENCE_S, eventually
from tests.support.watched_lab import JOB, watched_lab

WELL = """
patchlight_jobs{state="running"} 1
patchlight_job_info{job_id="j",name="n",user="u",trainer="synthetic"} 1
patchlight_job_workers{job_id="j"} 2
patchlight_gpu_allocated{gpu="s.g0",host="s.g0",job_id="j"} 1
patchlight_gpu_allocated{gpu="s.g1",host="s.g1",job_id="j"} 1
patchlight_gpu_up{gpu="s.g0"} 1
patchlight_gpu_up{gpu="s.g1"} 1
patchlight_gpu_utilization_ratio{gpu="s.g0"} 0.5
patchlight_gpu_utilization_ratio{gpu="s.g1"} 1
patchlight_ocs_up{ocs="o1"} 1
patchlight_ocs_cross_connects{ocs="o1"} 8
patchlight_ocs_circuits{ocs="o1",verdict="degraded"} 0
patchlight_agent_up{server="s"} 1
patchlight_speaker_up 1
"""


def counted(iterations: int, sent_bytes: int) -> str:
    return "".join(
        f'patchlight_worker_{name}_total{{job_id="j",rank="{rank}",host="s.g{rank}"}} {value}\n'
        for rank in (0, 1)
        for name, value in (
            ("iterations", iterations),
            ("sent_bytes", sent_bytes),
            ("compute_seconds", iterations * 3),
            ("communication_seconds", iterations),
        )
    )


def test_switches_that_nobody_programs_are_not_counted_as_lost() -> None:
    rows = dict(status_rows(Scrape.read(WELL, 100.0)))
    assert rows["packet switches"].text == "none that the controller programs"


def test_rates_are_what_grew_between_two_looks() -> None:
    before = Scrape.read(WELL + counted(10, 1000), 100.0)
    now = Scrape.read(WELL + counted(14, 3000), 102.0)
    alone = JobPace("j", "n", ("s.g0", "s.g1"), False, 0, 0, utilization=0.75)
    assert job_paces(before, None) == [alone]
    assert job_paces(now, before) == [
        JobPace(
            "j", "n", ("s.g0", "s.g1"), False, 0, 0, 2.0, 0.25, 16_000.0, 0.75
        )
    ]
    # A controller that was started anew counts from 0 again.
    (anew,) = job_paces(Scrape.read(WELL + counted(1, 10), 103.0), now)
    assert anew.iterations_per_s == 0


def test_the_share_of_each_uplink_is_beside_an_even_one() -> None:
    metric = "patchlight_packet_switch_uplink_transmit_bytes_per_second"
    rates = {("s1", 3): 3000, ("s1", 4): 1000, ("s2", 3): 0, ("s2", 4): 0}
    text = "".join(
        f'{metric}{{switch="{switch}",port="{port}",peer="c{port}",equal="3,4"}} {rate}\n'
        for (switch, port), rate in rates.items()
    )
    assert list(uplink_rows(Scrape.read(text, 0.0))) == [
        ("s1.3", "c3", "24kbps", "75.0 %", "50.0 %"),
        ("s1.4", "c4", "8kbps", "25.0 %", "50.0 %"),
        ("s2.3", "c3", "0bps", "", "50.0 %"),
        ("s2.4", "c4", "0bps", "", "50.0 %"),
    ]


def test_gpus_of_a_silent_agent_are_counted_while_they_are_in_jobs() -> None:
    silent = WELL.replace('patchlight_gpu_up{gpu="s.g1"} 1\n', "")
    said = dict(status_rows(Scrape.read(silent, 0.0)))["GPUs"]
    assert said.text.startswith("2 of 2 in jobs")


@pytest.mark.parametrize(
    ("change", "of", "words", "meaning"),
    [
        (
            ('ocs_up{ocs="o1"} 1', 'ocs_up{ocs="o1"} 0'),
            "o1",
            "does not answer",
            "bad",
        ),
        (('"degraded"} 0', '"degraded"} 2'), "o1", "2 degraded", "caution"),
        (
            (
                'ocs_cross_connects{ocs="o1"} 8',
                'ocs_drift_cross_connects{ocs="o1",kind="unknown"} 1',
            ),
            "o1",
            "1 not committed",
            "bad",
        ),
        (
            ('agent_up{server="s"} 1', 'agent_up{server="s"} 0'),
            "agents",
            "not: s",
            "bad",
        ),
        (
            ('agent_up{server="s"} 1', 'agent_root_workers{server="s"} 1'),
            "workers",
            "as root on s",
            "caution",
        ),
        (("speaker_up 1", "speaker_up 0"), "controller", "is down", "bad"),
        (
            ('gpu_up{gpu="s.g1"} 1', 'gpu_up{gpu="s.g1"} 0'),
            "GPUs",
            "unusable: s.g1",
            "bad",
        ),
    ],
    ids=[
        "OCS away",
        "power low",
        "drift",
        "agent silent",
        "root",
        "speaker ended",
        "GPU gone",
    ],
)
def test_what_is_not_well_is_said(
    change: tuple[str, str], of: str, words: str, meaning: str
) -> None:
    well = dict(status_rows(Scrape.read(WELL, 0.0)))
    assert {each.meaning for each in well.values()} == {"good"}
    said = dict(status_rows(Scrape.read(WELL.replace(*change), 0.0)))[of]
    assert words in said.text
    assert said.meaning == meaning


def test_an_iteration_is_compared_with_its_prediction() -> None:
    pace = JobPace(
        "j", "n", (), False, 1, 2, iterations_per_s=0.5, predicted_s=1.6
    )
    assert pace.off == "+25 %"
    assert replace(pace, predicted_s=None).off == ""


def test_a_large_lab_fits_a_small_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    job = "a-job-with-a-name-of-forty-characters-99-"
    text = "".join(
        f'patchlight_job_info{{job_id="{job}{j}",name="n",user="u",trainer="synthetic"}} 1\n'
        f'patchlight_job_workers{{job_id="{job}{j}"}} 10\n'
        f'patchlight_ocs_up{{ocs="switch-{j}"}} 1\n'
        for j in range(50)
    )
    text += "".join(
        f'patchlight_gpu_up{{gpu="server{g}.gpu0"}} 1\n'
        f'patchlight_gpu_allocated{{gpu="server{g}.gpu0",host="h",job_id="{job}{g % 50}"}} 1\n'
        for g in range(500)
    )
    found = Scrape.read(text, 100.0)
    screen(job_paces(found, found), found, 24).print()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if "more" in line] != []
    screen(job_paces(found, found), found, 60).print()
    assert 40 < len(capsys.readouterr().out.splitlines()) <= 60


def shown_at_terminal(address: str) -> str:
    """What ``patchlight top`` sends to a terminal of 80 columns and 24 lines until Ctrl-C."""
    ours, its = pty.openpty()
    ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    command = [sys.executable, "-m", "patchlight", "top", "--every", "500ms"]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        [*command, "--controller", address],
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        env=environment,
    ) as process:
        os.close(its)
        shown = b""
        deadline = time.monotonic() + PATIENCE_S
        while (
            shown.count(b"circuit switch") < 2 and time.monotonic() < deadline
        ):
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        while True:
            try:
                shown += os.read(ours, 4096)
            except OSError:
                break
    os.close(ours)
    assert process.returncode == 0, shown
    return shown.decode()


async def test_a_lab_at_work_fits_one_screen(tmp_path: Path) -> None:
    async with watched_lab(tmp_path) as lab:
        status = LabCommand(lab.address, "status")
        top = LabCommand(lab.address, "top")
        # One agent may be heard before the others.
        gpus = lab.controller.fleet.latest_gpus
        await eventually(lambda: len(gpus()) == 6, "all GPUs to be told of")
        shown = await status()
        assert len(shown.splitlines()) <= 24
        assert max(map(len, shown.splitlines())) <= 80
        assert "6 of 6 in jobs, busy 90 %, together 1800 W" in shown
        rows = {
            row["of"]: row["meaning"]
            for row in json.loads(await status("--json"))["lines"]
        }
        assert rows["ocs1"] == rows["GPUs"] == "good"
        once = await top("--once", "--every", "1s")
        assert f"{JOB} " in once
        assert "90 %" in once
        (pace,) = json.loads(await top("--json", "--every", "1s"))["jobs"]
        assert pace["iterations_per_s"] > 0
        assert pace["communication"] == 0.5
        live = await asyncio.to_thread(shown_at_terminal, lab.address)
        assert JOB in live
        frames = live.split("\x1b[H")
        assert all(frame.count("\n") < 24 for frame in frames)
