"""``patchlight deploy prometheus``: configuration, alerts and dashboards to watch a lab with."""

import shutil
from pathlib import Path
from typing import Any

import click
import yaml

from patchlight.console.commands import complete_lab
from patchlight.console.connection import running_lab
from patchlight.console.rendering import json_option, print_json, say
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile.values import HOST_PORT
from patchlight.testbed.linux.credentials import CA_FILE, CERTIFICATE_FILE, KEY_FILE, agent_name
from patchlight.testbed.units import parse_time

DEFAULT_METRICS = "127.0.0.1:9470"
_UNIX = "unix:"
_DEPLOY = Path(__file__).resolve().parents[1]
RULES = _DEPLOY / "prometheus" / "patchlight.rules.yml"
DASHBOARDS = tuple(sorted((_DEPLOY / "grafana").glob("*.json")))
CONFIG_FILE = "prometheus.yml"
CONTROLLER_JOB, AGENTS_JOB = "patchlight-controller", "patchlight-agent"


@click.command()
@click.argument("lab", shell_complete=complete_lab)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="Where the files are written.",
)
@click.option(
    "--controller",
    "address",
    metavar="HOST:PORT",
    help="Where the controller's metrics are, as in 'controller run --metrics'  [default: the lab "
    f"file's controller.api if that is a port, else {DEFAULT_METRICS}].",
)
@click.option(
    "--certificates",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/etc/prometheus/patchlight"),
    metavar="DIR",
    help="Where Prometheus finds ca.pem, cert.pem and key.pem, from 'deploy certificates'.",
)
@click.option("--every", default="15s", metavar="TIME", help="How often it looks.")
@json_option
def prometheus(
    lab: str, output: Path, address: str | None, certificates: Path, every: str, as_json: bool
) -> None:
    """Make a configuration with which Prometheus watches LAB.

    DIR then has prometheus.yml, which names the controller and each agent; patchlight.rules.yml,
    the alerts; and grafana/, dashboards to be imported. Start it with 'prometheus
    --config.file=DIR/prometheus.yml', or add the parts to a configuration that is there. Run
    again, the command writes the files anew.
    """
    meant = running_lab(lab)
    api = meant.controller_api
    where = address or (api if api and not api.startswith(_UNIX) else DEFAULT_METRICS)
    HOST_PORT.take(where)
    every_s = parse_time(every)
    if every_s < 1:
        raise BadInput(f"--every {every}: expected 1s or more, like 15s")
    config = scrape_config(meant, where, certificates, every_s)
    files = write_monitoring(output, config)
    if as_json:
        print_json({"lab": meant.name, "files": [str(file) for file in files]})
        return
    agents = len(config["scrape_configs"]) - 1
    say(f"wrote {output / CONFIG_FILE}: the controller at {where}, and {agents} agents")
    if left_out := len(meant.servers) - agents:
        say(f"{left_out} servers are left out: their agents answer at no TCP port")
    if where == DEFAULT_METRICS and address is None:
        say(f"the controller has to be started with --metrics {where}")


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
