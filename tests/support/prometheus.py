"""A real Prometheus that runs for a test."""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml

from patchlight.deploy.commands.options import (
    CONFIG_FILE,
    RULES,
    write_monitoring,
)
from tests.support.waiting import PATIENCE_S, free_ports


class PrometheusServer:
    """A Prometheus, asked over its own API."""

    def __init__(self, address: str) -> None:
        self._client = httpx.Client(
            base_url=f"http://{address}/api/v1", timeout=PATIENCE_S
        )

    def _ask(self, path: str, **parameters: str) -> Any:
        answer = self._client.get(path, params=parameters)
        assert answer.status_code == 200, (parameters, answer.text)
        return answer.json()["data"]

    def is_ready(self) -> bool:
        """Whether it answers."""
        with contextlib.suppress(httpx.TransportError):
            return self._client.get("/status/runtimeinfo").status_code == 200
        return False

    def values(self, query: str) -> list[float]:
        """The values that a query has now, but for those that are no number."""
        found = self._ask("/query", query=query)["result"]
        values = [float(each["value"][1]) for each in found]
        return [value for value in values if value == value]

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        alerts = self._ask("/alerts")["alerts"]
        return {
            a["labels"]["alertname"] for a in alerts if a["state"] == "firing"
        }

    def exemplars(self, query: str) -> list[dict[str, str]]:
        """The labels of the exemplars that it kept."""
        now = time.time()
        found = self._ask(
            "/query_exemplars", query=query, start=str(now - 600), end=str(now)
        )
        return [
            dict(each["labels"])
            for series in found
            for each in series["exemplars"]
        ]

    def series(self) -> int:
        """How many series it has in all."""
        return int(self._ask("/status/tsdb")["headStats"]["numSeries"])


@contextlib.contextmanager
def prometheus_server(
    folder: Path, config: dict[str, Any]
) -> Iterator[PrometheusServer]:
    """A Prometheus until the block ends, with what ``patchlight deploy prometheus`` writes.

    Its alerts wait for nothing: how long they do is tested with time that ``promtool`` makes up.
    """
    write_monitoring(folder, config)
    rules = yaml.safe_load((folder / RULES.name).read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    (folder / RULES.name).write_text(yaml.safe_dump(rules))
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    command = [
        "prometheus",
        f"--config.file={folder / CONFIG_FILE}",
        "--log.level=warn",
    ]
    command += [
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    command += ["--enable-feature=exemplar-storage"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            yield PrometheusServer(address)
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
