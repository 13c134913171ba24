"""``patchlight deploy prometheus``: what a Prometheus needs to watch a lab."""

from pathlib import Path

import click

from patchlight.console.connection import running_lab
from patchlight.console.lab_option import complete_lab
from patchlight.console.rendering import json_option, print_json, say
from patchlight.testbed.errors import BadInput
from patchlight.testbed.labfile.values import HOST_PORT
from patchlight.testbed.units import parse_time

DEFAULT_METRICS = "127.0.0.1:9470"
_UNIX = "unix:"


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
    from patchlight.deploy.monitoring import CONFIG_FILE, scrape_config, write_monitoring

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
