"""A Mininet tree, brought up and taken down: the peer of ``benchmarks.fabric``.

Runs under the system's Python, which has Mininet:
``mininet_tree.py HOSTS HOSTS_PER_SWITCH SWITCHES``, where SWITCHES is ``standalone`` (they learn)
or ``controller`` (Mininet's own tells them). Prints whether the first host reached the last one,
how long it pinged, and the seconds from the start to its answer.
"""

import sys
import time
from functools import partial

from mininet.net import Mininet
from mininet.node import OVSController, OVSSwitch
from mininet.topo import Topo


class Tree(Topo):  # type: ignore[misc]
    def build(self, hosts: int, per_switch: int) -> None:
        root = self.addSwitch("s1")
        for first in range(1, hosts + 1, per_switch):
            leaf = self.addSwitch(f"s{2 + first // per_switch}")
            self.addLink(leaf, root)
            for number in range(first, min(hosts + 1, first + per_switch)):
                self.addLink(self.addHost(f"h{number}"), leaf)


def main() -> None:
    started = time.monotonic()
    topology = Tree(hosts=int(sys.argv[1]), per_switch=int(sys.argv[2]))
    # What `mn --switch ovs,datapath=user,failMode=standalone --controller none` makes, or
    # `mn --switch ovs,datapath=user --controller ovsc`.
    alone = sys.argv[3] == "standalone"
    switch = partial(
        OVSSwitch,
        datapath="user",
        failMode="standalone" if alone else "secure",
    )
    net = Mininet(
        topo=topology,
        switch=switch,
        controller=None if alone else OVSController,
    )
    net.start()
    began = time.monotonic()
    if not alone:
        net.waitConnected()
    said = net.get("h1").cmd(
        f"ping -c 1 -W 5 {net.get('h' + sys.argv[1]).IP()}"
    )
    answered = time.monotonic()
    pinging_s = answered - began
    answered_s = answered - started
    net.stop()
    print(
        f"reached={' 0% packet loss' in said} pinging_s={pinging_s:.3f} answered_s={answered_s:.3f}"
    )


if __name__ == "__main__":
    main()
