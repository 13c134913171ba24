"""Traces of jobs on their way to the first iteration."""

import pytest

from patchlight.controller.metrics.exposition import JobTraces, sending_to
from patchlight.testbed.errors import BadInput
from tests.support.job_cluster import (
    Cluster,
    finish,
    job,
    simulated,
    submit_running,
)

pytest.importorskip(
    "opentelemetry.sdk", reason="the extra telemetry is not installed"
)

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (
    InMemorySpanExporter,
)


@simulated()
async def test_a_job_is_followed_to_its_first_iteration(
    cluster: Cluster,
) -> None:
    exporter = InMemorySpanExporter()
    traces = JobTraces("lab", cluster.table, SimpleSpanProcessor(exporter))
    (job_id,) = await submit_running(cluster, job("a", workers=2))
    await cluster.until(lambda: len(exporter.get_finished_spans()) > 0)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    await finish(cluster, job_id)
    traces.close()
    assert (
        len([s for s in exporter.get_finished_spans() if s.name == "job"]) == 1
    )
    root = spans["job"]
    assert root.attributes is not None
    assert (root.attributes["job.id"], root.attributes["job.name"]) == (
        job_id,
        "a",
    )
    assert {"wait", "decide", "start", "first iteration"} <= spans.keys()
    assert {
        span.context.trace_id for span in spans.values() if span.context
    } == {root.context and root.context.trace_id}
    wait, start, first = (
        spans[name] for name in ("wait", "start", "first iteration")
    )
    assert (_end(start), _end(root)) == (first.start_time, _end(first))
    assert root.start_time is not None
    assert wait.start_time is not None
    assert root.start_time <= wait.start_time <= _end(wait) <= _end(start)


def _end(span: ReadableSpan) -> int:
    assert span.end_time is not None
    return span.end_time


def test_where_traces_go_is_an_address_of_http() -> None:
    with pytest.raises(BadInput, match="expected an address like http://"):
        sending_to("127.0.0.1:4318")
