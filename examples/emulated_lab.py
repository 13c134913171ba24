"""Bring a lab up on this machine, ping from one of its hosts, and take it down. Needs root.

$ python examples/emulated_lab.py
PING 192.168.10.13 (192.168.10.13) 56(84) bytes of data.
64 bytes from 192.168.10.13: icmp_seq=1 ttl=64 time=… ms
…
1 packets transmitted, 1 received, 0% packet loss, time 0ms
…
"""

from patchlight import EmulatedLab

with EmulatedLab.from_file("ofc2022", scale=1000, name="example", agents=False) as lab:
    print(lab.host("server1.gpu0").run("ping -c 1 192.168.10.13").output)
