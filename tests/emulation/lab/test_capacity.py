"""What this machine carries is measured once, and sets the scale of a lab that names none."""

import json
from pathlib import Path

import pytest

from patchlight.emulation.lab import capacity
from patchlight.emulation.lab.emulated_lab import EmulatedLab
from patchlight.testbed.generate.generate import single
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile.reader import load_lab


def emulated(lab: Lab) -> EmulatedLab:
    return EmulatedLab.from_lab(lab, 1, controller=False)


def test_the_scale_is_the_smallest_round_one_that_fits() -> None:
    assert [
        capacity.scale_for(bps, 1e9) for bps in (0.0, 0.5e9, 0.6e9, 5e9, 240e9)
    ] == [1, 1, 10, 10, 1000]
    assert (
        capacity.nics_bps(load_lab("ofc2022").with_changes(scale=7.0)) == 240e9
    )
    # What has no rate is as fast as the machine; with a GPU it counts as 10 Gb/s.
    assert capacity.nics_bps(single(3)) == 30e9
    assert capacity.nics_bps(single(3, rate_bps=10**6)) == 3e6


@pytest.mark.root
@pytest.mark.ovs
def test_the_machine_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        capacity, "CACHE", tmp_path / "cache" / "capacity.json"
    )
    said: list[str] = []
    measured_bps = capacity.machine_rate_bps(
        "openvswitch", said.append, emulated
    )
    assert measured_bps > 10e6
    assert said == ["measuring the packet rate of this machine (once)"]
    (machine,) = json.loads(capacity.CACHE.read_text())
    capacity.CACHE.write_text(json.dumps({machine: 9_000_000_000}))
    said.clear()
    lab = load_lab("ofc2022")
    carries = (
        "this machine carries about 9Gbps, the lab's NICs send up to 240Gbps"
    )
    suited = capacity.suited(lab, None, said.append, emulated)
    assert (suited.scale, suited.machine_rate_bps) == (100, 9_000_000_000)
    assert said == [f"scale 100: {carries}"]
    said.clear()
    assert capacity.suited(lab, 50, said.append, emulated).scale == 50
    assert said == []
    assert capacity.suited(lab, 1, said.append, emulated).scale == 1
    assert said == [
        f"warning: at scale 1 jobs take longer than in the lab: {carries}; use --scale 100"
    ]
