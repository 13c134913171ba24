"""What a Prometheus needs to watch a lab: its configuration, rules, and dashboards for Grafana."""

import shutil
from pathlib import Path
from typing import Any

import yaml

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.linux.credentials import CA_FILE, CERTIFICATE_FILE, KEY_FILE, agent_name

_HERE = Path(__file__).parent
RULES = _HERE / "prometheus" / "patchlight.rules.yml"
DASHBOARDS = tuple(sorted((_HERE / "grafana").glob("*.json")))
CONFIG_FILE = "prometheus.yml"
CONTROLLER_JOB, AGENTS_JOB = "patchlight-controller", "patchlight-agent"
_UNIX = "unix:"


def scrape_config(lab: Lab, controller: str, certificates: Path, every_s: float) -> dict[str, Any]:
    """``prometheus.yml`` as a value.

    ``controller`` is where the controller's metrics are (``host:port``), ``certificates`` the
    folder with the certificate for ``prometheus`` on the machine where that runs. Agents that
    answer on Unix sockets, as an emulated lab's do, are left out: no Prometheus reads these.
    """
    every = f"{round(1000 * every_s)}ms"
    jobs: list[dict[str, Any]] = [
        {
            "job_name": CONTROLLER_JOB,
            "static_configs": [{"targets": [controller], "labels": {"lab": lab.name}}],
        }
    ]
    for server in lab.servers:
        if server.management is None or server.management.startswith(_UNIX):
            continue
        jobs.append(
            {
                # A name of its own, for its certificate: so each is a job of its own.
                "job_name": f"{AGENTS_JOB}-{server.name}",
                "scheme": "https",
                "tls_config": {
                    "ca_file": str(certificates / CA_FILE),
                    "cert_file": str(certificates / CERTIFICATE_FILE),
                    "key_file": str(certificates / KEY_FILE),
                    "server_name": agent_name(server.name, lab.name),
                },
                "static_configs": [
                    {
                        "targets": [server.management],
                        "labels": {"lab": lab.name, "server": server.name},
                    }
                ],
            }
        )
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [RULES.name],
        "scrape_configs": jobs,
    }


def write_monitoring(folder: Path, config: dict[str, Any]) -> list[Path]:
    """Put configuration, rules and dashboards into a folder; the files.

    ``PatchlightError`` if they cannot be written.
    """
    try:
        (folder / "grafana").mkdir(parents=True, exist_ok=True)
        written = [folder / CONFIG_FILE]
        written[0].write_text(yaml.safe_dump(config, sort_keys=False))
        for source in (RULES, *DASHBOARDS):
            inside = "grafana" if source in DASHBOARDS else ""
            written.append(Path(shutil.copyfile(source, folder / inside / source.name)))
    except OSError as error:
        raise PatchlightError(
            f"writing the configuration of Prometheus to {folder}: {error.strerror}",
            hint="name a folder you can write to with --output",
        ) from error
    return written
