"""What is particular to an OCS that runs SONiC: two lists that may differ, and factory losses."""

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from patchlight.controller.changes.power import (
    ExpectedReading,
    PowerBaselines,
    PowerCheck,
)
from patchlight.controller.changes.record import StepFailed
from patchlight.controller.circuits.drivers.sonic import SonicOcs
from patchlight.controller.storage.store import Store
from patchlight.emulation.optical.vendors.http import SonicOcsServer
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import CircuitSwitch, Lab
from patchlight.testbed.lab.portmap import PortMap
from tests.support.ocs_drivers import FIRST_MAP, circuit, circuits, emulated

SWITCH = CircuitSwitch("ocs1", "sonic-ocs", "", 24, 0.005, initial=FIRST_MAP)


async def test_what_only_the_hardware_holds_is_in_the_map_and_can_be_broken() -> (
    None
):
    async with emulated(SonicOcsServer, SWITCH) as (switch, device, front):
        driver = SonicOcs(switch, "")
        await driver.open()
        device.make(circuits("3>20"))
        front.unconfigured = {circuit("3>20")}
        await device.come_to_rest()
        assert await driver.read_map() == PortMap.of([*FIRST_MAP, (3, 20)])
        (refusal,) = (await driver.connect(circuits("3>9"))).refused
        assert refusal.words == "in:3 is in use on the device: 3>20"
        assert (await driver.disconnect(circuits("3>20"))).complete
        assert await driver.read_map() == FIRST_MAP
        await driver.close()


async def test_an_entry_that_is_not_valid_is_no_circuit_until_it_is_made_anew() -> (
    None
):
    earlier = replace(
        SonicOcs.built_in,
        states="/data/sonic-ocs:sonic-ocs/OCS_CROSS_CONNECT_TABLE",
        state_keys="status",
        up="enabled",
    )
    async with emulated(SonicOcsServer, SWITCH) as (switch, _, front):
        driver = SonicOcs(switch, "", earlier)
        await driver.open()
        front.invalid = {circuit("3>20"), circuit("4>7")}
        assert await driver.read_map() == FIRST_MAP
        assert (await driver.connect(circuits("3>20"))).complete
        assert circuit("3>20") in await driver.read_map()
        assert (await driver.disconnect(circuits("3>20", "4>7"))).complete
        assert not front.invalid
        await driver.close()


async def test_it_tells_what_each_path_lost_in_the_factory() -> None:
    async with emulated(SonicOcsServer, SWITCH) as (switch, device, _):
        driver = SonicOcs(switch, "")
        await driver.open()
        losses_db = await driver.factory_losses_db(circuits("1>7", "20>3"))
        assert losses_db == {
            c: round(device.loss_db(c), 2) for c in circuits("1>7", "20>3")
        }
        await driver.close()


async def test_a_switch_of_fewer_ports_than_the_lab_says() -> None:
    async with emulated(SonicOcsServer, SWITCH) as (switch, _, _):
        driver = SonicOcs(replace(switch, ports=32), "")
        with pytest.raises(
            PatchlightError, match="24x24, but the lab file says 32 ports"
        ):
            await driver.open()
        await driver.close()


async def test_failed_ports_are_its_alarms() -> None:
    async with emulated(SonicOcsServer, SWITCH) as (switch, device, _):
        driver = SonicOcs(switch, "")
        await driver.open()
        assert await driver.alarms() == ()
        device.matrix.failed = {5}
        first, _ = await driver.alarms()
        assert (first.subject, first.words, first.standing) == (
            "in:5",
            "in:5: failed",
            True,
        )
        device.matrix.failed = set()
        assert not any(alarm.standing for alarm in await driver.alarms())
        await driver.close()


async def test_a_path_that_lost_too_much_in_the_factory_fails_its_circuit(
    tmp_path: Path,
) -> None:
    lab = Lab("alone", circuit_switches=(SWITCH,))
    async with emulated(
        SonicOcsServer, replace(SWITCH, insertion_loss_db=9.0)
    ) as (switch, _, _):
        driver = SonicOcs(switch, "")
        await driver.open()
        made = ExpectedReading(circuit("3>9"), None, None)
        with contextlib.closing(Store(tmp_path / "controller.db")) as store:
            check = PowerCheck(lab, PowerBaselines(store))
            with pytest.raises(
                StepFailed,
                match=r"3>9 had \d\.\d dB of loss, expected at most 4\.5 dB",
            ):
                await check.verify(driver, [made])
            (remark,) = (
                await replace(
                    check, lab=Lab("alone", circuit_switches=(switch,))
                ).verify(driver, [made])
            ).remarks
        assert (
            "unverified, no power monitor; factory losses of its paths are at most"
            in remark
        )
        await driver.close()


async def test_losses_that_cannot_be_read_are_not_known_and_fail_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with emulated(SonicOcsServer, replace(SWITCH, ports=96)) as (
        switch,
        _,
        _,
    ):
        driver = SonicOcs(switch, "")
        await driver.open()
        for _ in range(2):
            assert await driver.factory_losses_db(circuits("1>7")) == {}
        (logged,) = (
            r.getMessage()
            for r in caplog.records
            if "factory" in r.getMessage()
        )
        assert "the answer is longer than" in logged
        assert (await driver.connect(circuits("3>9"))).complete
        await driver.close()
