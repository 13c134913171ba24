"""The conformance suite on every driver, each against its emulated device."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchlight.controller.circuits.registry import open_driver
from patchlight.testbed.lab import CircuitSwitch
from patchlight.testbed.labfile.reader import read_lab
from tests.controller.circuits.conformance import CHECKS, INITIAL, Check, restore, run
from tests.support.emulated_devices import lab_file, running

INITIAL_TEXTS = tuple(str(c) for c in INITIAL)
# Dialects of one vendor's firmware: what the device does the same and the table says otherwise.
DEVICES = (
    "calient-tl1",
    "calient-tl1 without bulk",
    "calient-tl1 in pages",
    "calient-tl1 that takes busy ports",
    "calient-rest that takes busy ports",
    "polatis-scpi",
    "polatis-scpi without monitors",
    "polatis-scpi in one message",
    "polatis-tl1",
    "polatis-tl1 with monitors on outputs",
    "polatis-tl1 in pages",
    "calient-rest",
    "calient-rest without bulk",
    "polatis-restconf",
    "polatis-restconf with monitors on outputs",
    "polatis-restconf on one connection",
    "glimmerglass-tl1",
    "polatis-netconf",
    "polatis-netconf without monitors",
    "telescent-ssh",
    "openflow",
    "dry-run",
)

DIALECTS = {
    "without bulk": "bulk = false\n",
    "in one message": 'then = ";"\n',
    "on one connection": "keep_connection = true\n",
}
KEYS = {
    "openflow": ", datapath_id: 0x51",
    "that takes busy ports": ", emulated: {conflict_time: 12ms}",
}
TRAITS = {
    "in pages": {"repeat_pages": True},
    "without monitors": {"monitors": "none"},
    "with monitors on outputs": {"monitors": "out"},
}


@pytest.fixture(scope="module", params=DEVICES)
def switch(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CircuitSwitch]:
    device: str = request.param
    folder: Path = tmp_path_factory.mktemp("ocs")
    driver = device.split(" ")[0]
    lab = lab_file(
        folder,
        driver=driver,
        ports=96,
        switching_time="5ms",
        initial=INITIAL_TEXTS,
        extra=next((text for end, text in KEYS.items() if device.endswith(end)), ""),
    )
    if driver == "dry-run":
        yield read_lab(lab).circuit_switch("ocs1")
        return
    with pytest.MonkeyPatch.context() as patch, running(folder, lab, "--no-fabric") as device_:
        for variant, table in DIALECTS.items():
            if device.endswith(variant):
                (folder / f"{driver}.toml").write_text(table)
                patch.setenv("PATCHLIGHT_DIALECTS", str(folder))
        for variant, traits in TRAITS.items():
            if device.endswith(variant):
                assert device_.fault(**traits)["ok"]
        yield device_.switch


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conformance(check: Check, switch: CircuitSwitch) -> None:
    driver = open_driver(switch, "")
    if switch.driver != "dry-run":
        asyncio.run(restore(open_driver(switch, "")))
    asyncio.run(run(check, driver))
