"""Run one emulated optical switch, and change its circuits through its driver. No root, no lab.

$ python examples/emulated_switch.py
Polatis with 8 ports
before: 1-5
made: 2>6, 6>2
after: 1-5, 2-6
ended
"""

import asyncio
import subprocess
import sys

from patchlight import PortMap
from patchlight.controller.circuits.registry import open_driver
from patchlight.testbed.lab.model import CircuitSwitch


async def connect(address: str) -> None:
    """Join ports 2 and 6 of the switch at this address, both ways."""
    driver = open_driver(CircuitSwitch("ocs1", "polatis-scpi", address, ports=8))
    await driver.open()
    try:
        print(f"{(await driver.identify()).vendor} with {driver.ports} ports")
        print("before:", ", ".join((await driver.read_map()).texts))
        outcome = await driver.connect(PortMap.parse(["2-6"]))
        print("made:", ", ".join(map(str, outcome.done)))
        print("after:", ", ".join((await driver.read_map()).texts))
    finally:
        await driver.close()


command = [sys.executable, "-m", "patchlight", "emulate", "ocs", "polatis-scpi"]
command += ["--ports", "8", "--listen", "127.0.0.1:0", "--circuits", "1-5"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as switch:
    assert switch.stdout is not None  # … at 127.0.0.1:40123; Ctrl-C ends it
    asyncio.run(connect(switch.stdout.readline().partition(" at ")[2].partition(";")[0]))
    switch.terminate()
