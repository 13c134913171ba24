"""What is particular to Polatis over RESTCONF: the guard of the map, and the list of alarms."""

from patchlight.controller.circuits.contract import CircuitDriver
from patchlight.controller.circuits.drivers.polatis_restconf import (
    PolatisRestconf,
)
from patchlight.emulation.optical.protocols.http_server import (
    HttpRequest,
    HttpResponse,
)
from patchlight.emulation.optical.vendors.http import PolatisRestconfServer
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.portmap import PortMap
from tests.support.emulated_devices import Running
from tests.support.ocs_drivers import (
    FIRST_MAP,
    circuit,
    circuits,
    drivers,
    emulated,
)


class SharedFront(PolatisRestconfServer):
    """Somebody else connects ``3>20`` just before each change, as often as ``left`` says."""

    left = 0

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        if request.method != "GET" and self.left:
            self.left -= 1
            await self._device.light([circuit("3>20")])
        return await super()._answer(request)


async def test_a_map_that_changed_meanwhile_is_left_alone() -> None:
    switch = CircuitSwitch(
        "ocs1", "polatis-restconf", "", 32, 0.005, initial=FIRST_MAP
    )
    async with emulated(SharedFront, switch) as (switch, _, front):
        driver = PolatisRestconf(switch, "")
        await driver.open()
        front.left = 1
        (refusal,) = (await driver.connect(circuits("3>9"))).refused
        assert refusal.words == "412: The cross-connects have changed"
        assert set(await driver.read_map()) == {*FIRST_MAP, circuit("3>20")}
        assert (await driver.disconnect(circuits("3>20"))).complete
        # In a list the rest is tried again, against the map that has been read since: what is
        # in use by then is not taken.
        front.left = 1
        outcome = await driver.connect(circuits("3>9", "4>10"))
        (refusal,) = outcome.refused
        assert refusal.words == "in:3 is in use on the device: 3>20"
        assert outcome.done == (circuit("4>10"),)
        assert (await driver.disconnect(circuits("3>20", "4>10"))).complete
        front.left = 1
        (refusal,) = (await driver.disconnect(circuits("1>7"))).refused
        assert "412" in refusal.words
        assert await driver.read_map() == PortMap.of([*FIRST_MAP, (3, 20)])
        assert (await driver.disconnect(circuits("3>20", "1>7"))).complete
        await driver.close()


@drivers("polatis-restconf")
async def test_alarms_are_told_as_they_appear(
    device: Running, driver: CircuitDriver
) -> None:
    before = len(await driver.alarms())
    for _ in range(2):
        device.fault(report="critical: fan 2 stands still")
        await driver.read_map()
    alarms = (await driver.alarms())[before:]
    assert [alarm.severity for alarm in alarms] == ["critical", "critical"]
    assert "fan 2 stands still" in alarms[0].words
    assert len(await driver.alarms()) == before + 2
