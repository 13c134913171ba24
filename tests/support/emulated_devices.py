"""An emulated OCS as the process that it is in a lab, reached over TCP."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.labfile.reader import read_lab
from tests.support.forked import ForkedProgram
from tests.support.waiting import PATIENCE_S, ask, wait_until

ROOT = Path(__file__).parents[2]


def lab_file(
    folder: Path,
    *,
    name: str = "alone",
    driver: str = "calient-tl1",
    ports: int = 32,
    switching_time: str = "20ms",
    initial: tuple[str, ...] = (),
    extra: str = "",
) -> Path:
    path = folder / "lab.yaml"
    path.write_text(f"""
name: {name}
network: 10.0.0.0/16
servers:
  - name: s1
    management: 10.9.0.1:8471
    gpus: [{{name: gpu0, model: Tesla M40}}]
    nics: [{{name: nic0, address: 10.0.0.1, rate: 40Gbps, gpu: gpu0}}]
circuit_switches:
  - {{name: ocs1, driver: {driver}, address: "127.0.0.1:3082", ports: {ports},
     switching_time: {switching_time}, user: admin{extra}, cross_connects: {json.dumps(initial)}}}
fibres: [{{ends: [s1.nic0, ocs1.1], loss: 0.3dB}}]
""")
    return path


@dataclass
class Running:
    """A running device: as a lab file would name it, and its control socket."""

    switch: CircuitSwitch
    control: Path
    process: ForkedProgram

    def fault(self, **faults: Any) -> dict[str, Any]:
        return ask(self.control, faults)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)


@contextmanager
def running(
    folder: Path,
    lab: Path,
    *options: str,
    listen: str = "127.0.0.1:0",
    **environment: str,
) -> Iterator[Running]:
    ready = folder / "ready"
    control = folder / "control"
    log = folder / "device.log"
    ready.unlink(missing_ok=True)
    log.unlink(missing_ok=True)
    where = [
        "--listen",
        listen,
        "--ready-file",
        str(ready),
        "--control",
        str(control),
    ]
    words = ["--lab", str(lab), "--ocs", "ocs1", *where, *options]
    process = ForkedProgram(
        "patchlight.emulation.optical.__main__:main",
        words,
        log,
        variables=environment,
    )
    try:

        def answers() -> bool:
            assert process.poll() is None, (
                f"the device ended: {log.read_text()}"
            )
            return ready.exists()

        wait_until(answers, "the device to be ready")
        switch = replace(
            read_lab(lab).circuit_switch("ocs1"),
            address=ready.read_text().strip(),
        )
        yield Running(switch, control, process)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
