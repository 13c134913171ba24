"""The configuration and the rules that a Prometheus gets, as Prometheus itself reads them."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.controller.access.authority import Authority
from patchlight.deploy.commands.options import (
    RULES,
    scrape_config,
    write_monitoring,
)
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.labfile.reader import parse_lab

LAB = """
name: watched
network: 10.0.0.0/16
controller: {api: "127.0.0.1:8470"}
servers:
  - {name: s1, management: "10.9.0.1:8471", gpus: [{name: gpu0, model: M}],
     nics: [{name: nic0, address: 10.0.0.1, gpu: gpu0}]}
  - {name: s2, management: "unix:/run/s2.sock", gpus: [{name: gpu1, model: M}],
     nics: [{name: nic0, address: 10.0.0.2, gpu: gpu1}]}
packet_switches: [{name: t1, datapath_id: 1, ports: 2}]
fibres: [{ends: [s1.nic0, t1.1]}, {ends: [s2.nic0, t1.2]}]
"""


def promtool(*words: str | Path) -> None:
    done = subprocess.run(
        ["promtool", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_agents_that_answer_at_a_port_are_scraped_by_the_name_in_their_certificate() -> (
    None
):
    config = scrape_config(
        parse_lab(LAB, "lab"), "127.0.0.1:9470", Path("/certs"), 15.0
    )
    controller, agent = config["scrape_configs"]
    assert controller["static_configs"] == [
        {"targets": ["127.0.0.1:9470"], "labels": {"lab": "watched"}}
    ]
    assert agent["tls_config"] == {
        "ca_file": "/certs/ca.pem",
        "cert_file": "/certs/cert.pem",
        "key_file": "/certs/key.pem",
        "server_name": "agent.s1.watched",
    }
    assert agent["static_configs"][0]["targets"] == ["10.9.0.1:8471"]


@pytest.mark.prometheus
def test_the_command_writes_what_prometheus_takes(tmp_path: Path) -> None:
    lab = tmp_path / "lab.yaml"
    lab.write_text(LAB)
    Authority("watched", tmp_path / "ca").for_prometheus(tmp_path / "certs")
    words = [
        "deploy",
        "prometheus",
        str(lab),
        "--output",
        str(tmp_path / "out"),
    ]
    done = CliRunner().invoke(
        cli, [*words, "--certificates", str(tmp_path / "certs")]
    )
    assert done.exit_code == 0, done.output
    assert "the controller at 127.0.0.1:8470, and 1 agents" in done.output
    assert "1 servers are omitted" in done.output
    promtool("check", "config", tmp_path / "out" / "prometheus.yml")
    assert (tmp_path / "out" / RULES.name).read_text() == RULES.read_text()
    assert isinstance(
        CliRunner().invoke(cli, [*words, "--every", "1ms"]).exception, BadInput
    )


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        PatchlightError,
        match=r"writing the configuration of Prometheus to .*file",
    ):
        write_monitoring(tmp_path / "file", {})


# Of each alert: series with their values, one each 15 s, and the labels that it fires with 20
# minutes later. Values as promtool has them: 0x80 is 81 times 0.
_FIRES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "ControllerDown": (
        {'up{job="patchlight-controller",instance="i",lab="l"}': "0x80"},
        {
            "job": "patchlight-controller",
            "instance": "i",
            "lab": "l",
            "severity": "critical",
        },
    ),
    "SpeakerDown": (
        {'patchlight_speaker_up{lab="l"}': "0x80"},
        {"lab": "l", "severity": "critical"},
    ),
    "PacketSwitchAway": (
        {'patchlight_packet_switch_connected{lab="l",switch="t1"}': "0x80"},
        {"lab": "l", "switch": "t1", "severity": "warning"},
    ),
    "PacketSwitchFull": (
        {
            'patchlight_packet_switch_lacking_entries{lab="l",switch="t1"}': "4x80"
        },
        {"lab": "l", "switch": "t1", "severity": "warning"},
    ),
    "PacketSwitchPortMissing": (
        {
            'patchlight_packet_switch_missing_ports{lab="l",switch="t1"}': "1x80"
        },
        {"lab": "l", "switch": "t1", "severity": "warning"},
    ),
    "OcsUnreachable": (
        {'patchlight_ocs_up{lab="l",ocs="o1"}': "0x80"},
        {"lab": "l", "ocs": "o1", "severity": "critical"},
    ),
    "PowerLow": (
        {
            'patchlight_ocs_circuits{lab="l",ocs="o1",verdict="degraded"}': "2x80"
        },
        {
            "lab": "l",
            "ocs": "o1",
            "verdict": "degraded",
            "severity": "warning",
        },
    ),
    "CircuitLost": (
        {
            'patchlight_ocs_drift_cross_connects{lab="l",ocs="o1",kind="missing"}': "1x80"
        },
        {"lab": "l", "ocs": "o1", "kind": "missing", "severity": "critical"},
    ),
    "AgentSilent": (
        {'patchlight_agent_up{lab="l",server="s1"}': "0x80"},
        {"lab": "l", "server": "s1", "severity": "critical"},
    ),
    "JobStalled": (
        {
            'patchlight_job_last_iteration_timestamp_seconds{lab="l",job_id="j"}': "0x80",
            'patchlight_job_iteration_seconds_sum{lab="l",job_id="j"}': "10x80",
            'patchlight_job_iteration_seconds_count{lab="l",job_id="j"}': "10x80",
            'patchlight_job_paused{lab="l",job_id="j"}': "0x80",
        },
        {"lab": "l", "job_id": "j", "severity": "warning"},
    ),
    "GpuIdle": (
        {
            'patchlight_gpu_utilization_ratio{lab="l",gpu="s1.gpu0"}': "0x80",
            'patchlight_gpu_allocated{lab="l",gpu="s1.gpu0",host="s1.gpu0",job_id="j"}': "1x80",
        },
        {"lab": "l", "gpu": "s1.gpu0", "severity": "warning"},
    ),
    "PartFails": (
        {'patchlight_part_faults_total{lab="l",part="fleet"}': "0+1x80"},
        {"lab": "l", "part": "fleet", "severity": "warning"},
    ),
    "PolicyFails": (
        {
            'patchlight_policy_faults_total{lab="l",kind="placement",policy="p"}': "0+1x80"
        },
        {
            "lab": "l",
            "kind": "placement",
            "policy": "p",
            "severity": "warning",
        },
    ),
    "CertificateEnds": (
        {
            'patchlight_agent_certificate_end_timestamp_seconds{lab="l",server="s1"}': "86400x80"
        },
        {"lab": "l", "server": "s1", "severity": "warning"},
    ),
}
# The same series as they are while all is well, for which no alert fires.
_WELL = {
    'up{job="patchlight-controller",instance="i",lab="l"}': "1x80",
    'patchlight_speaker_up{lab="l"}': "1x80",
    'patchlight_packet_switch_connected{lab="l",switch="t1"}': "1x80",
    'patchlight_packet_switch_lacking_entries{lab="l",switch="t1"}': "0x80",
    'patchlight_packet_switch_missing_ports{lab="l",switch="t1"}': "0x80",
    'patchlight_ocs_up{lab="l",ocs="o1"}': "1x80",
    'patchlight_ocs_circuits{lab="l",ocs="o1",verdict="degraded"}': "0x80",
    'patchlight_ocs_circuits{lab="l",ocs="o1",verdict="failed"}': "0x80",
    'patchlight_ocs_drift_cross_connects{lab="l",ocs="o1",kind="missing"}': "0x80",
    'patchlight_agent_up{lab="l",server="s1"}': "1x80",
    'patchlight_job_last_iteration_timestamp_seconds{lab="l",job_id="j"}': "0+15x80",
    'patchlight_job_iteration_seconds_sum{lab="l",job_id="j"}': "0+15x80",
    'patchlight_job_iteration_seconds_count{lab="l",job_id="j"}': "0+15x80",
    'patchlight_job_paused{lab="l",job_id="j"}': "0x80",
    'patchlight_gpu_utilization_ratio{lab="l",gpu="s1.gpu0"}': "0.9x80",
    'patchlight_gpu_utilization_ratio{lab="l",gpu="s1.gpu1"}': "0x80",
    'patchlight_gpu_allocated{lab="l",gpu="s1.gpu0",host="s1.gpu0",job_id="j"}': "1x80",
    'patchlight_part_faults_total{lab="l",part="fleet"}': "3x80",
    'patchlight_policy_faults_total{lab="l",kind="placement",policy="p"}': "3x80",
    'patchlight_agent_certificate_end_timestamp_seconds{lab="l",server="s1"}': "86400000x80",
}


@pytest.mark.prometheus
def test_each_alert_fires_for_its_fault_and_none_while_all_is_well(
    tmp_path: Path,
) -> None:
    rules = yaml.safe_load(RULES.read_text())
    alerts = {
        rule["alert"]
        for group in rules["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    assert alerts == {f"Patchlight{name}" for name in _FIRES}

    def case(
        series: dict[str, str], fires: dict[str, dict[str, str]]
    ) -> dict[str, Any]:
        return {
            "interval": "15s",
            "input_series": [
                {"series": s, "values": values} for s, values in series.items()
            ],
            "alert_rule_test": [
                {
                    "eval_time": "20m",
                    "alertname": alert,
                    "exp_alerts": [{"exp_labels": fires[alert]}]
                    if alert in fires
                    else [],
                }
                for alert in sorted(alerts)
            ],
        }

    cases = [
        case(series, {f"Patchlight{n}": labels})
        for n, (series, labels) in _FIRES.items()
    ]
    # What it says is not compared: without annotations an alert is known by its labels.
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("annotations", None)
    (tmp_path / RULES.name).write_text(yaml.safe_dump(rules))
    tests = {"rule_files": [RULES.name], "tests": [*cases, case(_WELL, {})]}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(tests))
    promtool("test", "rules", tmp_path / "tests.yml")
