"""``patchlight emulate tune``: transceivers of an emulated lab, and what becomes of their light."""

from collections.abc import Mapping

import click

from patchlight.cli.lab.attached import attached
from patchlight.console.errors import require_root
from patchlight.console.lab_option import lab_option
from patchlight.console.rendering import Coloured, Column, Table, listing_options, print_json, say
from patchlight.testbed.lab.model import Endpoint, Host
from patchlight.testbed.lab.spectrum import Channel
from patchlight.testbed.lab.tuning import LightClient


@click.command()
@click.argument("port", required=False)
@click.argument("channel", required=False)
@lab_option()
@listing_options
def tune(port: str | None, channel: str | None, lab_name: str | None, as_json: bool) -> None:
    """Tune the transceiver of PORT, a host or port, to CHANNEL; without CHANNEL, show it.

    \b
      patchlight emulate tune
      patchlight emulate tune server1 193.200
      patchlight emulate tune server1 off

    It is dark while it is tuned, and the command ends when it sends. Without
    PORT: all transceivers, and how many frames others destroyed on which fibre.

    \b
    With --json: transceivers by port, each with channel, state (on, off,
    tuning), band, to (the ports that get its frames) and destroyed_at (fibres,
    by the end that light leaves); destroyed (frames by fibre) and dark (frames
    by the port that sent them).
    """
    require_root("tuning transceivers")
    lab = attached(lab_name)
    with lab.light as light:
        end = None if port is None else _end(port, lab.lab.host_names)
        if end is not None and channel == "off":
            light.darken(end)
        elif end is not None and channel is not None:
            light.tune(end, Channel.parse(channel))
        _print(light, end, as_json=as_json)


def _end(port: str, hosts: Mapping[str, Host]) -> Endpoint:
    return hosts[port].endpoint if port in hosts else Endpoint.parse(port)


def _print(light: LightClient, end: Endpoint | None, *, as_json: bool) -> None:
    transceivers, losses = light.transceivers(), light.losses()
    if end is not None:
        transceivers = {str(end): transceivers[str(end)]}
    if as_json:
        print_json({"transceivers": transceivers, **losses})
        return
    table = Table(
        Column("port", whole=True),
        Column("THz", whole=True),
        Column("", whole=True),
        Column("band", wide=True),
        "received by",
        "destroyed on",
    )
    for name, found in transceivers.items():
        table.add_row(
            name,
            found["channel"],
            Coloured(found["state"], "good" if found["state"] == "on" else "caution"),
            found["band"],
            ", ".join(found["to"]),
            Coloured(", ".join(found["destroyed_at"]), "bad"),
        )
    table.print()
    for at, frames in losses["destroyed"].items():
        say(f"frames destroyed on the fibre at {at}: {frames}")
