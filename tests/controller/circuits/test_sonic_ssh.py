"""What is particular to an OCS that runs SONiC and is driven by its command line."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from patchlight.controller.circuits.contract import DeviceRefused, DirectedPort
from patchlight.controller.circuits.drivers.sonic_ssh import SonicOcsSsh
from patchlight.controller.circuits.protocols.ssh import FILE_VARIABLE
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.protocols.ssh_server import Ran
from patchlight.emulation.optical.vendors.sonic_cli import SonicOcsCliServer
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import CircuitSwitch
from patchlight.testbed.lab.portmap import PortMap
from tests.support.ocs_drivers import FIRST_MAP, circuit, circuits, emulated
from tests.support.waiting import PATIENCE_S

SWITCH = CircuitSwitch(
    "ocs1", "sonic-ocs-ssh", "", 24, 0.005, user="admin", initial=FIRST_MAP
)


@pytest.fixture(autouse=True)
def _own_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "known_hosts"))


class Recorded(SonicOcsCliServer):
    """It notes the commands that it gets."""

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        self.commands: list[str] = []

    async def _run(self, user: str, command: str) -> Ran:
        self.commands.append(command)
        return await super()._run(user, command)


class OnlyGenerated(Recorded):
    written = False


class KeepsDisplaced(Recorded):
    keeps_displaced = True


class Silent(Recorded):
    """It tells of refusals and successes alike with exit status 0."""

    async def _run(self, user: str, command: str) -> Ran:
        return replace(await super()._run(user, command), status=0)


@contextlib.asynccontextmanager
async def opened(
    kind: type[Recorded] = Recorded, switch: CircuitSwitch = SWITCH
) -> AsyncIterator[tuple[SonicOcsSsh, EmulatedOcs, Recorded]]:
    async with emulated(kind, switch) as (served, device, front):
        driver = SonicOcsSsh(served, "")
        try:
            await driver.open()
            yield driver, device, front
        finally:
            await driver.close()


async def by_hand(front: SonicOcsCliServer, command: str) -> str:
    ran = await front._run("admin", command)
    assert ran.status == 0, ran
    return ran.output.decode()


async def test_it_breaks_first_and_adds_safely_in_one_command() -> None:
    async with opened() as (driver, device, front):
        identity = await driver.identify()
        assert (identity.vendor, identity.model) == ("SONiC", "OCS-V")
        assert identity.serial == "EMU-ocs1"
        front.commands.clear()
        assert (await driver.connect(circuits("3>9", "4>10"))).complete
        assert front.commands[:4] == [
            "show ocs cross-connect config",
            "show ocs cross-connect status",
            "sudo config ocs cross-connect add 3A-9B,4A-10B safe",
            "show ocs cross-connect status",
        ]
        # Each table takes a device long: afterwards the states are enough.
        assert {*front.commands[4:]} <= {"show ocs cross-connect status"}
        front.commands.clear()
        assert (await driver.disconnect(circuits("3>9", "4>10"))).complete
        changes = [c for c in front.commands if c.startswith("sudo")]
        assert changes == ["sudo config ocs cross-connect delete 3A-9B,4A-10B"]
        assert device.map == FIRST_MAP


async def test_what_only_the_hardware_holds_is_in_the_map_and_can_be_broken() -> (
    None
):
    async with opened() as (driver, device, front):
        device.make(circuits("3>20"))
        front.stale = {circuit("3>20")}
        await device.come_to_rest()
        assert await driver.read_map() == PortMap.of([*FIRST_MAP, (3, 20)])
        (refusal,) = (await driver.connect(circuits("3>9"))).refused
        assert refusal.words == "in:3 is in use on the device: 3>20"
        assert (await driver.disconnect(circuits("3>20"))).complete
        assert device.map == FIRST_MAP


async def test_an_entry_that_update_left_keeps_its_ports_until_it_is_broken() -> (
    None
):
    async with opened(KeepsDisplaced) as (driver, device, front):
        await by_hand(front, "sudo config ocs cross-connect add 1A-20B")
        held = await by_hand(front, "show ocs cross-connect config")
        assert "1A-7B" in held
        assert "1A-20B" in held
        await device.come_to_rest()
        now = PortMap.of([(1, 20), (7, 1)])
        assert await driver.read_map() == now
        (refusal,) = (await driver.connect(circuits("3>7"))).refused
        assert refusal.words == "out:7 is in use on the device: 1>7"
        assert (await driver.disconnect(circuits("1>7"))).complete
        assert (await driver.connect(circuits("3>7"))).complete
        assert device.map == PortMap.of([*now, (3, 7)])


async def test_another_s_circuit_is_not_displaced_however_late_it_comes() -> (
    None
):
    async with opened() as (driver, device, _):
        device.faults.meddle = "3>20"
        (refusal,) = (await driver.connect(circuits("3>9"))).refused
        assert "existing cross-connect 3A-20B" in refusal.words
        assert device.map == PortMap.of([*FIRST_MAP, (3, 20)])


@pytest.mark.parametrize("kind", [Recorded, Silent])
async def test_a_refusal_is_told_whatever_the_exit_status(
    kind: type[Recorded],
) -> None:
    async with opened(kind) as (driver, device, _):
        device.faults.refuse_next = "redis is down"
        (refusal,) = (await driver.connect(circuits("3>9"))).refused
        assert refusal.words == "Error: redis is down"
        assert device.map == FIRST_MAP


async def test_labels_with_blanks_and_without_text_shift_no_column() -> None:
    async with opened() as (driver, _, front):
        await by_hand(front, "sudo config ocs port label 2A 'normal  3B'")
        await by_hand(front, "sudo config ocs port state 3A powered_off")
        states = await driver.port_states()
        locked = [p for p, s in states.items() if s.condition == "locked"]
        assert locked == [DirectedPort("in", 3)]
        assert states[DirectedPort("in", 3)].words == "powered_off"
        await by_hand(front, "sudo config ocs port state 3A normal")
        assert (await driver.connect(circuits("3>9"))).complete


async def test_a_circuit_at_a_blocked_port_is_in_the_map_but_not_made() -> (
    None
):
    async with opened() as (driver, device, front):
        await by_hand(front, "sudo config ocs port state 1A force_blocked")
        assert device.map == PortMap.of([(7, 1)])
        assert await driver.read_map() == FIRST_MAP
        (refusal,) = (await driver.connect(circuits("1>7"))).refused
        assert refusal.words == "1>7 did not come up: in:1 is force_blocked"


async def test_commands_that_sonic_cli_gen_made_are_recognized() -> None:
    async with opened(OnlyGenerated) as (driver, device, front):
        assert await driver.read_map() == FIRST_MAP
        front.commands.clear()
        assert (await driver.connect(circuits("3>9", "4>10"))).complete
        changes = [c for c in front.commands if c.startswith("sudo")]
        assert changes == [
            "sudo config ocs-cross-connect add 3A-9B --a-side 3A --b-side 9B",
            "sudo config save -y",
            "sudo config ocs-cross-connect add 4A-10B --a-side 4A --b-side 10B",
            "sudo config save -y",
        ]
        assert (await driver.disconnect(circuits("3>9"))).complete
        assert device.map == PortMap.of([*FIRST_MAP, (4, 10)])
        assert await driver.factory_losses_db(circuits("1>7")) == {}
        states = await driver.port_states()
        assert {state.condition for state in states.values()} == {"ready"}


async def test_changes_that_cannot_be_saved_are_made_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with emulated(Recorded, SWITCH) as (switch, _, _):
        dialect = replace(SonicOcsSsh.built_in, save="sudo config nonsense")
        driver = SonicOcsSsh(switch, "", dialect)
        await driver.open()
        assert (await driver.connect(circuits("3>9"))).complete
        assert "ocs1: its changes are not saved" in caplog.text
        await driver.close()


async def test_a_device_without_either_command_line_is_refused() -> None:
    class Neither(OnlyGenerated):
        generated = False

    with pytest.raises(DeviceRefused, match='No such command "ocs"'):
        async with opened(Neither):
            pass


async def test_a_switch_of_fewer_ports_than_the_lab_says() -> None:
    async with emulated(Recorded, SWITCH) as (switch, _, _):
        driver = SonicOcsSsh(replace(switch, ports=32), "")
        with pytest.raises(
            PatchlightError, match="24x24, but the lab file says 32 ports"
        ):
            await driver.open()
        await driver.close()


async def test_it_tells_what_each_path_lost_in_the_factory() -> None:
    async with opened() as (driver, device, _):
        losses_db = await driver.factory_losses_db(circuits("1>7", "20>3"))
        assert losses_db == {
            c: round(device.loss_db(c), 2) for c in circuits("1>7", "20>3")
        }


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("", "nothing"),
        ("no table here\n", "no table here"),
        ("id  a_side\n--  ------\n1A-7Bx1A\n", "1A-7Bx1A"),
        ("id     a_side\n-----  ------\n1-1A-7B\n", "1-1A-7B"),
    ],
)
async def test_what_is_no_table_is_no_empty_map(
    output: str, words: str
) -> None:
    class Odd(Recorded):
        async def _run(self, user: str, command: str) -> Ran:
            if command == "show ocs cross-connect config":
                return Ran(output=output.encode())
            return await super()._run(user, command)

    async with opened(Odd) as (driver, _, _):
        with pytest.raises(DeviceRefused, match="invalid value") as caught:
            await driver.read_map()
        assert words in caught.value.message


async def test_half_an_answer_is_not_read() -> None:
    async with opened() as (driver, device, _):
        device.faults.truncate = 1
        assert await asyncio.wait_for(driver.read_map(), 20) == FIRST_MAP


async def test_a_simulated_client_that_dies_leaves_half_a_command() -> None:
    async with emulated(Recorded, SWITCH) as (switch, _, front):
        front.without_ssh = "admin"
        host, _, port = switch.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b'[1, "hostname", ""]\n[2, "sudo conf')
        writer.write_eof()
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b'[1, 0, "ocs1\\n", ""]\n'
        assert front.commands == ["hostname"]
        writer.close()
