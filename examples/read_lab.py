"""Read a lab file, and print the links that its circuits make.

$ python examples/read_lab.py ofc2022
server1.nic0 – tor1.1  40Gbps, 2.1 dB
server1.nic1 – tor1.2  40Gbps, 2.1 dB
server2.nic2 – tor2.3  40Gbps, 2.1 dB
server2.nic3 – tor2.4  40Gbps, 2.1 dB
server3.nic4 – tor1.5  40Gbps, 2.1 dB
server4.nic5 – tor2.6  40Gbps, 2.1 dB
tor1.7 – tor2.7  10Gbps, 0.3 dB
"""

import sys

from patchlight import builtin_lab, read_lab
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.units import format_rate

name = sys.argv[1]
lab = read_lab(name if name.endswith(".yaml") else builtin_lab(name))
links = trace_links(lab, lab.initial_maps)
for a, b in links.pairs():
    path = links.paths[a]
    print(f"{a} – {b}  {format_rate(path.rate_bps)}, {path.loss_db:.1f} dB")
