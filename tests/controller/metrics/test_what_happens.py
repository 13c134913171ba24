"""Metrics of what happens: iterations, changes of circuits, decisions, optical power."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from patchlight.controller.changes.record import Notifier
from patchlight.controller.metrics.exposition import (
    KEPT_S,
    EventMetrics,
    JobProgress,
    listen_for_metrics,
)
from patchlight.controller.metrics.lab_state import (
    OpticalPower,
    counter,
    gauge,
    openflow_metrics,
)
from patchlight.controller.packet_switches.openflow.client import Speaker
from patchlight.controller.packet_switches.openflow.flowtable import (
    SpeakerOptions,
)
from patchlight.controller.packet_switches.switches import PacketSwitches
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobState
from patchlight.testbed.labfile.reader import load_lab
from tests.support.change_bench import ChangeBench
from tests.support.job_cluster import Cluster, job, simulated, submit_running

Key = tuple[str, tuple[str, ...]]


def values(families: Iterable[Metric]) -> dict[Key, float]:
    """Values by the name of the sample and what its labels say."""
    return {
        (
            sample.name.removeprefix("patchlight_"),
            tuple(sample.labels.values()),
        ): sample.value
        for family in families
        for sample in family.samples
    }


def looked_up(power: OpticalPower) -> dict[Key, float]:
    """The same of what Prometheus would read."""
    text = "".join(
        family.as_text(openmetrics=False) for family in power.collect()
    )
    return values(text_string_to_metric_families(text))


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@simulated()
async def test_workers_are_counted_until_a_while_after_their_job(
    cluster: Cluster,
) -> None:
    registry = CollectorRegistry()
    clock = Clock()
    progress = JobProgress(registry, cluster.table.running, 10.0, clock)
    cluster.table.on_reports.append(progress.reported)
    (job_id,) = cluster.submit(job("a", workers=2, iterations=2))
    await cluster.until_state(job_id, JobState.DONE)
    hosts = cluster.table[job_id].hosts
    of_rank_1 = ("worker_iterations_total", (job_id, "1", hosts[1]))
    shown = values(registry.collect())
    assert shown[of_rank_1] == 2
    assert shown["job_iteration_seconds_count", (job_id,)] == 4
    sent_bytes = cluster.table[job_id].spec.gradient_bytes
    assert (
        shown["worker_sent_bytes_total", (job_id, "0", hosts[0])]
        == 2 * sent_bytes * 10
    )
    assert shown[
        "worker_compute_seconds_total", (job_id, "0", hosts[0])
    ] == pytest.approx(0.2)
    assert shown["job_iteration_seconds_sum", (job_id,)] == pytest.approx(0.8)
    reports, _ = cluster.table.ledger.iterations(job_id)
    last = shown["job_last_iteration_timestamp_seconds", (job_id,)]
    assert last == max(report["finished_at"] for report in reports)
    await cluster.until(lambda: job_id not in cluster.table.running)
    progress.prune()
    # Its last values can still be scraped.
    assert of_rank_1 in values(registry.collect())
    clock.now_s = KEPT_S + 1
    progress.prune()
    assert values(registry.collect()) == {}


@simulated()
async def test_decisions_of_policies_are_timed(cluster: Cluster) -> None:
    registry = CollectorRegistry()
    cluster.table.ledger.on_decision.append(EventMetrics(registry).decided)
    await submit_running(cluster, job("a", workers=2))
    counts = {
        labels: value
        for (name, labels), value in values(registry.collect()).items()
        if name == "policy_decision_seconds_count"
    }
    assert (
        "placement",
        cluster.scheduler.policies.words["placement"],
    ) in counts


async def test_changes_are_timed_by_stage_with_their_number(
    bench: ChangeBench,
) -> None:
    registry = CollectorRegistry()
    bench.transactions.on_end.append(EventMetrics(registry).change_ended)
    change = await bench.regroup()
    shown = values(registry.collect())
    for stage, seconds in change.stages_s.items():
        assert shown["reconfiguration_stage_seconds_count", (stage,)] == 1
        assert shown["reconfiguration_stage_seconds_sum", (stage,)] == seconds
    assert shown["reconfiguration_seconds_count", ("committed",)] == 1
    exemplars = [
        s.exemplar for f in registry.collect() for s in f.samples if s.exemplar
    ]
    assert {exemplar.labels["reconfiguration"] for exemplar in exemplars} == {
        str(change.id)
    }


async def test_power_that_is_lost_shows_at_the_next_measurement(
    bench: ChangeBench,
) -> None:
    power = OpticalPower(bench.service, Notifier())
    assert looked_up(power) == {}
    change = await bench.regroup()
    await power.measure()
    before = looked_up(power)
    circuits = len((await bench.parts.maps.read())["ocs1"])
    assert before["ocs_circuits", ("ocs1", "ok")] == circuits
    out = change.changes["ocs1"]["makes"][0].partition(">")[2]
    bench.device.fault(drift_db={out: 2.0})
    await power.measure()
    after = looked_up(power)
    assert after["ocs_circuits", ("ocs1", "degraded")] == 1
    port = ("ocs1", out)
    assert after["ocs_port_power_deficit_db", port] > 1.5
    measured = "ocs_port_power_dbm", (*port, "out")
    assert after[measured] == pytest.approx(before[measured] - 2, abs=0.3)
    bench.device.kill()
    await power.measure()
    assert looked_up(power) == {}


def test_what_the_speaker_told_is_there_by_switch_and_gone_with_it(
    tmp_path: Path,
) -> None:
    lab = load_lab("ofc2022")
    speaker = Speaker(SpeakerOptions(tmp_path / "speaker.sock", (1, 2)))
    switches = PacketSwitches(lab, speaker)

    def shown() -> dict[Key, float]:
        families = openflow_metrics(speaker, switches, 0)
        text = "".join(
            family.as_text(openmetrics=False) for family in families
        )
        return values(text_string_to_metric_families(text))

    one, two = lab.packet_switches
    counts = {
        "connections": 1,
        "sent": 7,
        "received": 8,
        "errors": 2,
        "echo_s": None,
        "waiting": 3,
    }
    told = [
        {**counts, "datapath_id": one.datapath_id, "echo_s": 0.002},
        {**counts, "datapath_id": two.datapath_id},
    ]
    switches.on_event(
        {"event": "traffic", "switches": told, "refused": {"tls": 4}}, 0.0
    )
    there = shown()
    assert there["packet_switch_sent_messages_total", (two.name,)] == 7
    assert there["packet_switch_received_messages_total", (two.name,)] == 8
    assert there["packet_switch_errors_total", (one.name,)] == 2
    assert there["packet_switch_waiting_sends", (one.name,)] == 3
    assert there["packet_switch_echo_seconds", (one.name,)] == 0.002
    assert ("packet_switch_echo_seconds", (two.name,)) not in there
    assert there["speaker_refused_connections_total", ("tls",)] == 4
    assert there["speaker_refused_connections_total", ("second",)] == 0
    switches.on_event({"event": "speaker-down", "error": "it ended"}, 0.0)
    assert not any(
        name.startswith("packet_switch_sent") for name, _ in shown()
    )


def test_whatever_a_label_says_is_read_back() -> None:
    said = 'a "name"\\n of\nmany \\ lines'
    for openmetrics in (False, True):
        families = (
            gauge("one", "One.", 1.0),
            counter("many", "Many.", {said: 2}, "name"),
        )
        text = "".join(
            family.as_text(openmetrics=openmetrics) for family in families
        )
        read = (
            openmetrics_families
            if openmetrics
            else text_string_to_metric_families
        )
        found = values(read(text + ("# EOF\n" if openmetrics else "")))
        assert found == {("one", ()): 1.0, ("many_total", (said,)): 2.0}


def test_metrics_are_for_this_machine_alone() -> None:
    for address in ("0.0.0.0:0", "[::]:0", "a-name:0"):
        with pytest.raises(BadInput, match=r"metrics .*at "):
            listen_for_metrics(address)
    with listen_for_metrics("localhost:0") as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
