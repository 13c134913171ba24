"""A real Prometheus with our configuration: dashboards have data, a fault fires its alert."""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from patchlight.controller.access.authority import Authority
from patchlight.controller.policies.topology import regroup
from patchlight.deploy.commands.options import DASHBOARDS, scrape_config
from tests.support.change_bench import JOBS
from tests.support.prometheus import PrometheusServer, prometheus_server
from tests.support.tls_agents import idle_agent, serving
from tests.support.waiting import PATIENCE_S, eventually
from tests.support.watched_lab import LAB, watched_lab

pytestmark = pytest.mark.prometheus


def queries() -> Iterator[str]:
    """What the dashboards ask, with Grafana's own variables filled in."""
    for dashboard in DASHBOARDS:
        for panel in json.loads(dashboard.read_text())["panels"]:
            for target in panel["targets"]:
                expression = str(target["expr"]).replace(
                    "$__rate_interval", "10s"
                )
                yield expression.replace("$lab", LAB.name)


async def without_data(server: PrometheusServer) -> list[str]:
    """The dashboards' queries that have no data."""
    return [
        query
        for query in queries()
        if not await asyncio.to_thread(server.values, query)
    ]


async def test_dashboards_have_data_and_a_fault_fires_its_alert(
    tmp_path: Path,
) -> None:
    (tmp_path / "device").mkdir()
    (tmp_path / "prometheus").mkdir()
    async with watched_lab(tmp_path / "device") as lab:
        # Without the agents, which do not answer over TLS here.
        config = scrape_config(
            LAB.with_changes(servers=()), lab.address, tmp_path, 1.0
        )
        with prometheus_server(tmp_path / "prometheus", config) as server:
            await eventually(server.is_ready, "Prometheus to answer")
            await eventually(
                lambda: server.values("patchlight_controller_info"), "a scrape"
            )
            change = await lab.controller.transactions.change(
                lambda maps: regroup(lab.controller.lab, maps, JOBS), "test"
            )
            assert change.state == "committed", change.message
            deadline = time.monotonic() + PATIENCE_S
            while left := await without_data(server):
                assert time.monotonic() < deadline, left
                await asyncio.sleep(0.5)  # the pause between two looks
            stages = "patchlight_reconfiguration_stage_seconds_bucket"
            numbered = {"reconfiguration": str(change.id)}
            await eventually(
                lambda: numbered in server.exemplars(stages), "exemplars"
            )
            # Alerts wait for nothing here: one scrape that came late fires one, until the next.
            await eventually(lambda: server.firing() == set(), "no alert")
            assert server.series() < 2000
            lab.device.kill()
            await eventually(
                lambda: "PatchlightOcsUnreachable" in server.firing(),
                "the alert",
            )


async def test_agents_are_scraped_over_tls_with_their_certificates(
    tmp_path: Path,
) -> None:
    authority = Authority(LAB.name, tmp_path / "ca")
    authority.for_prometheus(tmp_path / "prometheus")
    server1, *_ = LAB.servers
    own = authority.for_agent(server1.name, tmp_path / "agent")
    async with serving(
        idle_agent(LAB, server1, tmp_path / "state"), own
    ) as address:
        lab = LAB.with_changes(servers=(replace(server1, management=address),))
        config = scrape_config(
            lab, "127.0.0.1:1", tmp_path / "prometheus", 1.0
        )
        with prometheus_server(tmp_path / "prometheus", config) as server:
            await eventually(server.is_ready, "Prometheus to answer")
            who = f'patchlight_agent_info{{lab="{LAB.name}",server="{server1.name}"}}'
            await eventually(
                lambda: server.values(who) == [1.0], "a scrape of the agent"
            )
            await eventually(
                lambda: "PatchlightControllerDown" in server.firing(),
                "an alert of the controller",
            )
