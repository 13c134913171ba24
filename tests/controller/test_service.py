"""A controller as a process, asked over its REST API and by the command line."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.controller.client import ControllerClient, ControllerError
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobSpec
from tests.support.emulated_devices import lab_file
from tests.support.emulated_devices import running as emulated_ocs

LAB = """
name: dry
network: 10.9.0.0/24
controller: {{api: "127.0.0.1:{api}", openflow: "127.0.0.1:{openflow}"}}
servers:
  - name: a
    gpus: [{{name: g0, model: M}}]
    nics: [{{name: n0, address: 10.9.0.1, gpu: g0}}]
  - name: b
    gpus: [{{name: g1, model: M}}]
    nics: [{{name: n1, address: 10.9.0.2, gpu: g1}}]
packet_switches:
  - {{name: t1, datapath_id: 0x11, ports: 4}}
  - {{name: t2, datapath_id: 0x12, ports: 4}}
circuit_switches:
  - {{name: o1, driver: dry-run, address: "127.0.0.1:1", ports: 16, cross_connects: [1-3, 2-5]}}
fibres:
  - {{ends: [a.n0, o1.1]}}
  - {{ends: [b.n1, o1.2]}}
  - {{ends: [t1.1, o1.3]}}
  - {{ends: [t1.2, o1.4]}}
  - {{ends: [t2.1, o1.5]}}
  - {{ends: [t2.2, o1.6]}}
  - {{ends: [t1.4, t2.4]}}
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Running:
    """A controller process and a client of it."""

    def __init__(self, folder):
        self.api, self.state = f"127.0.0.1:{free_port()}", folder / "state"
        self.lab = folder / "lab.yaml"
        port = self.api.rpartition(":")[2]
        self.lab.write_text(LAB.format(api=port, openflow=free_port()))
        self.client = ControllerClient(self.api)
        self.log = folder / "controller.log"

    def start(self):
        command = [sys.executable, "-m", "patchlight.controller", "--lab", str(self.lab)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--state", str(self.state)], stdout=log, stderr=log
            )
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(ControllerError):
                self.client.status()
                return
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(20)


@pytest.fixture
def running(tmp_path):
    controller = Running(tmp_path)
    controller.start()
    yield controller
    controller.stop()


def command(running, *words):
    return CliRunner().invoke(cli, [*words, "--lab", str(running.lab)])


def test_connect_and_disconnect_by_names_and_numbers(running):
    done = command(running, "ocs", "connect", "o1", "b.n1:t1.2")
    assert done.exit_code == 0, done.output
    assert "o1 - 2>5" in done.output
    assert "o1 + 2>4" in done.output
    assert running.client.circuits()["o1"]["map"] == ["1>3", "2>4", "3>1", "4>2"]
    assert command(running, "ocs", "disconnect", "o1", "2").exit_code == 0
    assert running.client.circuits()["o1"]["map"] == ["1>3", "3>1"]
    links = running.client.links()
    assert {"a": "a.n0", "b": "t1.1"}.items() <= links[0].items()


def test_each_change_is_in_the_history_with_its_stages(running):
    record = running.client.reconfigure({"o1": ["7-8"]}, why="because")
    assert record["state"] == "committed"
    assert {"read", "plan", "drain", "make", "verify", "flows"} <= record["stages_s"].keys()
    assert running.client.reconfigurations()[-1]["why"] == "because"
    assert "o1: unverified, it has no power monitor" in record["notes"]


def test_wrong_requests_change_nothing_and_say_what_was_expected(running):
    before = running.client.circuits()
    for maps in ({"o1": ["1-99"]}, {"nope": ["1-2"]}, {"o1": ["1-2", "1-3"]}, {"o1": ["x"]}):
        with pytest.raises(BadInput):
            running.client.reconfigure(maps)
    assert running.client.circuits() == before
    spec = JobSpec("j", 1, 400, {"M": 0.1}, workers=1)
    for wrong, why in (
        (JobSpec("j", 1, 400, {"M": 0.1}, hosts=("nobody",)), "no host called 'nobody'"),
        (JobSpec("j", 1, 400, {"other": 0.1}, hosts=("a",)), "no compute time for M"),
        (JobSpec("j", 1, 400, {"M": 0.1}, hosts=("a", "g0")), "asked for twice"),
        (JobSpec("j", 1, 400, {"M": 0.1}, workers=3), "the lab has 2 GPUs"),
        (JobSpec("j", 1, 400, {"other": 0.1}, workers=1), "the lab has 0 GPUs of the models"),
        (JobSpec("j", 1, 400, {"M": 0.1}), "expected 'workers'"),
        (JobSpec("j/../k", 1, 400, {"M": 0.1}, workers=1), "does not take that"),
    ):
        with pytest.raises(BadInput, match=why):
            running.client.submit(
                [spec, wrong] if wrong.hosts and "nobody" in wrong.hosts else [wrong]
            )
    assert running.client.jobs() == []


def test_a_job_without_agents_fails_and_says_why(running):
    job = running.client.submit([JobSpec("j", 1, 400, {"M": 0.1}, workers=2)], "regroup")[0]
    deadline = time.monotonic() + 20
    while running.client.job(job["id"])["state"] != "failed":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "has no agent" in running.client.job(job["id"])["message"]


def test_jobs_and_history_outlive_a_killed_controller(running):
    running.client.reconfigure({"o1": ["7-8"]})
    running.stop(signal.SIGKILL)
    running.start()
    assert running.client.reconfigurations()[-1]["state"] == "committed"


def test_sigterm_ends_it_in_good_order(running):
    assert running.stop() == 0
    with pytest.raises(ControllerError, match="no answer from a controller"):
        running.client.status()


def test_a_taken_port_names_who_has_it(running):
    second = subprocess.run(
        [sys.executable, "-m", "controller", "--lab", str(running.lab), "--state",
         str(running.state.with_name("other"))],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert second.returncode == 1
    assert f"(pid {running.process.pid})" in second.stderr


def test_status_and_lists_print_and_are_json(running):
    assert "t1" in command(running, "controller", "status").output
    answer = json.loads(command(running, "controller", "status", "--json").output)
    assert answer["lab"] == "dry"
    assert "calient" not in command(running, "ocs", "list").output
    assert json.loads(command(running, "ocs", "show", "--json").output)["o1"]["map"]
    assert json.loads(command(running, "job", "list", "--json").output) == []


def test_metrics_are_what_prometheus_reads(running):
    import httpx
    from prometheus_client.parser import text_string_to_metric_families

    running.client.reconfigure({"o1": ["7-8"]})
    text = httpx.get(f"http://{running.api}/metrics").text
    found = {
        (s.name, tuple(s.labels.items())): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }
    assert found["patchlight_reconfigurations", (("state", "committed"),)] == 1
    assert found["patchlight_ocs_up", (("ocs", "o1"),)] == 1


def test_a_circuit_switch_that_is_gone_fails_the_job_and_not_the_controller(tmp_path):
    (tmp_path / "device").mkdir()
    device_lab = lab_file(tmp_path / "device", ports=16)
    with emulated_ocs(tmp_path / "device", device_lab, "--no-fabric") as device:
        controller = Running(tmp_path)
        text = controller.lab.read_text().replace("driver: dry-run", "driver: calient-tl1")
        controller.lab.write_text(text.replace('"127.0.0.1:1"', f'"{device.switch.address}"'))
        controller.start()
        try:
            device.kill()
            job = controller.client.submit([JobSpec("j", 1, 400, {"M": 0.1}, workers=2)])[0]
            deadline = time.monotonic() + 60
            while controller.client.job(job["id"])["state"] != "failed":
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert "no hosts could be chosen" in controller.client.job(job["id"])["message"]
            assert controller.client.status()["lab"] == "dry"
        finally:
            controller.stop()
