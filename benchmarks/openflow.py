"""How fast flow entries get into a switch, on each OpenFlow engine, beside ``ovs-ofctl``.

One Open vSwitch bridge (userspace datapath), 5,000 entries on distinct MACs. Ours is the whole
way: the controller reads the switch, diffs, sends the entries to the speaker process, and that
to the switch, until the barrier's reply is back. The peer reads the same entries from a file.
Medians of the rounds, ours and the peers' in turn.
"""

import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import figure
from patchlight.controller.packet_switches.openflow.client import Speaker
from patchlight.controller.packet_switches.openflow.flow_sync import FlowSync
from patchlight.controller.packet_switches.openflow.flowtable import (
    FlowTable,
    SpeakerOptions,
)
from patchlight.controller.packet_switches.openflow.forwarding import entry_to
from patchlight.controller.packet_switches.openflow.speaker.__main__ import (
    available,
)
from patchlight.testbed.errors import PatchlightError
from tests.support.private_ovs import PrivateOvs

ENTRIES = 5000
ROUNDS = 5
_BRIDGE = "br0"
_LISTEN = "127.0.0.1:6653"


def run() -> list[dict[str, Any]]:
    """The figures; ``PatchlightError`` if Open vSwitch or an engine is missing."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in available():
            # A fresh one for each, so that no engine inherits the other's memory.
            with PrivateOvs(
                f"pl.bench-{os.getpid()}-of", Path(folder) / name
            ) as ovs:
                found += asyncio.run(_measure(ovs, name))
    return found


async def _measure(ovs: PrivateOvs, engine: str) -> list[dict[str, Any]]:
    file = ovs.directory / "flows.txt"
    up = asyncio.Event()
    socket = ovs.directory / "speaker.sock"
    speaker = Speaker(
        SpeakerOptions(socket, (1,), _LISTEN, netns=ovs.netns, engine=engine)
    )
    speaker.subscribe(
        lambda event: up.set() if event["event"] == "switch-up" else None
    )
    ours = list[float]()
    add = list[float]()
    bundle = list[float]()
    async with speaker:
        ovs.add_bridge(_BRIDGE, 1, _LISTEN)
        async with asyncio.timeout(30):
            await up.wait()
        for number in range(ROUNDS):
            ports = _ports(number)
            table = FlowTable.of(
                entry_to(mac, port) for mac, port in ports.items()
            )
            entry = "priority=100,dl_dst={},actions=output:{}\n"
            file.write_text(
                "".join(entry.format(mac, port) for mac, port in ports.items())
            )
            # New each time: one that is kept would mend what the peers do to the table.
            flows = FlowSync(speaker)
            begun = time.perf_counter()
            applied = await flows.set_table(1, table)
            ours.append(ENTRIES / (time.perf_counter() - begun))
            if applied.added != ENTRIES or not applied.ok:
                raise PatchlightError(
                    f"{engine}: the table was not installed: {applied}"
                )
            await flows.close()
            _check(ovs)
            add.append(_peer(ovs, str(file)))
            bundle.append(_peer(ovs, "--bundle", str(file)))
            ovs.ofctl("del-flows", _BRIDGE)
    version = f"{speaker.info['engine']} {speaker.info['engine_version']}"
    name = f"flow entries installed, {version}, beside"
    rate = statistics.median(ours)
    return [
        figure(
            f"{name} {peer}",
            rate,
            "1/s",
            peer=peer,
            peer_value=statistics.median(rates),
        )
        for peer, rates in (
            ("ovs-ofctl add-flows", add),
            ("ovs-ofctl --bundle add-flows", bundle),
        )
    ]


def _ports(number: int) -> dict[str, int]:
    """A port for each MAC; other MACs each round, for the speaker keeps what it serialised."""
    return {
        f"02:00:00:{number:02x}:{i >> 8:02x}:{i & 255:02x}": 1 + i % 8
        for i in range(ENTRIES)
    }


def _peer(ovs: PrivateOvs, *arguments: str) -> float:
    ovs.ofctl("del-flows", _BRIDGE)
    begun = time.perf_counter()
    ovs.ofctl("add-flows", _BRIDGE, *arguments)
    took_s = time.perf_counter() - begun
    _check(ovs)
    return ENTRIES / took_s


def _check(ovs: PrivateOvs) -> None:
    if (count := len(ovs.flows(_BRIDGE))) != ENTRIES:
        raise PatchlightError(
            f"the switch has {count} flow entries rather than {ENTRIES}"
        )


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
