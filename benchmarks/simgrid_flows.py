"""Flows in SimGrid, to stand beside ours; run by the system's Python, which has its module.

Standard input is JSON: the capacities of links in bit/s, the latency in seconds of the first link
of each path, and for each flow its path, bytes and start. Standard output is JSON: when each is
complete, and the processor seconds of the simulation without making the platform. Model CM02, in
which flows share links max-min fair if their latencies are equal; without TCP's window and
cross-traffic.
"""

import json
import sys
import time
from typing import Any


def main() -> None:
    import simgrid  # type: ignore[import-not-found]

    given = json.load(sys.stdin)
    settings = ("model:CM02", "TCP-gamma:0", "crosstraffic:0")
    engine = simgrid.Engine(
        ["flows", *[f"--cfg=network/{each}" for each in settings]]
    )
    zone = simgrid.NetZone.create_full_zone("network")
    links: list[Any] = [
        zone.create_link(f"link{number}", bps / 8)
        for number, bps in enumerate(given["links_bps"])
    ]
    for number in {flow["path"][0] for flow in given["flows"]}:
        links[number].set_latency(given["latency_s"])
    for link in links:
        link.seal()
    hosts: dict[int, Any] = {}
    routed = set()
    for flow in given["flows"]:
        ends = flow["source"], flow["destination"]
        for node in ends:
            if node not in hosts:
                hosts[node] = zone.create_host(f"node{node}", 1e9)
        if ends not in routed:
            routed.add(ends)
            way = [
                simgrid.LinkInRoute(links[number]) for number in flow["path"]
            ]
            points = [hosts[node].netpoint for node in ends]
            zone.add_route(points[0], points[1], None, None, way, False)
    zone.seal()
    ends_s = [0.0] * len(given["flows"])

    def send() -> None:
        in_order = sorted(
            range(len(ends_s)), key=lambda n: given["flows"][n]["start_s"]
        )
        sent = []
        for number in in_order:
            flow = given["flows"][number]
            simgrid.this_actor.sleep_until(flow["start_s"])
            pair = hosts[flow["source"]], hosts[flow["destination"]]
            sent.append(
                (number, simgrid.Comm.sendto_async(*pair, flow["bytes"]))
            )
        for number, comm in sent:
            comm.wait()
            ends_s[number] = comm.finish_time

    simgrid.Actor.create("sender", next(iter(hosts.values())), send)
    began = time.process_time()
    engine.run()
    json.dump(
        {"ends_s": ends_s, "cpu_s": time.process_time() - began}, sys.stdout
    )


if __name__ == "__main__":
    main()
