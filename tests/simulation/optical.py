"""Optical switches of a simulated lab: the emulated devices, with their protocols' real bytes.

Left out: TLS below HTTP, SSH below shells and NETCONF, and OpenFlow's bytes: ``OpticalSpeaker``
stands for the speaker and its engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import json
import random
from collections.abc import (
    AsyncIterator,
    Callable,
    Container,
    Iterable,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, Any

import httpx

from patchlight.controller.circuits.dialect import DeviceLinks
from patchlight.controller.packet_switches.openflow import flowtable
from patchlight.controller.packet_switches.openflow.circuit_switch import (
    OFPP_IN_PORT,
)
from patchlight.controller.packet_switches.openflow.flowtable import (
    FlowEntry,
    Match,
    SpeakerOptions,
)
from patchlight.emulation.optical.crossbar import (
    Arriving,
    ChannelCrossbar,
    Crossbar,
    arriving_dbm,
)
from patchlight.emulation.optical.device import EmulatedOcs, EmulatedWss
from patchlight.emulation.optical.emulated_switch import EmulatedFaults
from patchlight.emulation.optical.matrices import (
    LightChange,
    Phase,
    Reason,
    RequestRefused,
)
from patchlight.emulation.optical.protocols.server import (
    ProtocolServer,
    server_class,
)
from patchlight.emulation.optical.protocols.ssh_server import SshServer
from patchlight.testbed.lab.model import CircuitSwitch, Endpoint
from patchlight.testbed.lab.portmap import AnyMap, CrossConnect, PortMap
from patchlight.testbed.lab.spectrum import SpectrumMap
from tests.simulation.packet_switches import SimulatedLogin, SpeakerProcess
from tests.simulation.world import Process, World

if TYPE_CHECKING:
    from tests.simulation.plant import Plant


class WithoutTls(httpx.AsyncHTTPTransport):
    """HTTP's real bytes, but over TCP alone."""

    def __init__(self) -> None:
        super().__init__(verify=False)  # else it reads all certificates

    async def handle_async_request(
        self, request: httpx.Request
    ) -> httpx.Response:
        """Send a request."""
        request.url = request.url.copy_with(scheme="http")
        return await super().handle_async_request(request)


class _Light(Crossbar):
    """Keeps account of the light that an OCS lets pass."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.lit = PortMap()

    async def change(self, change: LightChange) -> None:
        """See ``Crossbar``."""
        kept = (c for c in self.lit if c.inp not in change.dark)
        self.lit = PortMap.of((*kept, *change.light))
        self._device.moved(self.lit)

    async def receiving(self, ports: Iterable[int]) -> frozenset[int]:
        """See ``Crossbar``."""
        plant = self._device.plant
        name = self._device.switch.name
        return frozenset(
            port for port in ports if plant.is_lit(Endpoint(name, str(port)))
        )


class _ChannelLight(ChannelCrossbar):
    """The same of a wavelength switch."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.lit = SpectrumMap()

    async def change(self, lit: SpectrumMap) -> None:
        """See ``ChannelCrossbar``."""
        self.lit = lit
        self._device.moved(lit)

    async def arriving(self) -> Arriving:
        """See ``ChannelCrossbar``."""
        light = self._device.plant.links().light
        assert light is not None
        return {
            port: {
                signal.channel: dbm
                for signal, dbm in found.items()
                if signal.channel
            }
            for port, found in light.arriving(self._device.switch.name).items()
        }


_MIRRORS_TURN_S = 1.0


class _Everything(Container[object]):
    def __contains__(self, _: object) -> bool:
        return True


class Device:
    """One optical switch, on or off. Its mirrors stay where they are when it dies."""

    def __init__(self, world: World, plant: Plant, name: str) -> None:
        self.world = world
        self.plant = plant
        self.switch = plant.lab.optical_switch(name)
        self.state_file = world.folder / f"{name}.json"
        self.process = Process(world, name)
        self.process.alive = False
        self.emulated: EmulatedOcs | EmulatedWss | None = None
        self.server: ProtocolServer | None = None
        self.map: AnyMap = type(self.switch.initial)()
        """Which light it lets pass, in truth."""
        self.meddled: Container[object] = ()
        """What others than Patchlight are changing."""
        self.on_change: list[Callable[[Device, AnyMap, AnyMap], None]] = []
        self.past: list[tuple[float, AnyMap]] = [(0.0, self.map)]
        """Its maps, and since when."""
        self._older = b""

    def moved(self, now: AnyMap) -> None:
        """Its light is this now."""
        before = self.map
        self.map = now
        if before == now:
            return
        self.past.append((self.world.now, now))
        if self.state_file.exists():
            self._older = self.state_file.read_bytes()
        for hear in self.on_change:
            hear(self, before, now)

    def may_report(self, said: AnyMap, since_s: float) -> bool:
        """Whether such a map may be read since then: with what always passed, and nothing that
        never did, unless it is entered now, or the device lies."""
        last = max(
            n for n, (begun_s, _) in enumerate(self.past) if begun_s <= since_s
        )
        maps = [set(each) for _, each in self.past[last:]]
        device = self.emulated
        entered = set[Any]()
        if isinstance(device, EmulatedOcs):
            entered = {
                c for circuit in device.matrix for c in circuit.directions
            }
        elif device is not None:
            entered = set(device.matrix)
        if device is not None and device.faults.dark_ports:
            return True
        return (
            set.intersection(*maps) <= set(said) <= set.union(entered, *maps)
        )

    def start(self, ports: int | None = None) -> None:
        """Switch it on: it has the map that it saved. ``ports``: so many are left of an OCS."""
        self.process = Process(self.world, self.switch.name)
        self.world.log(self.switch.name, "starts")
        self.process.start(self._serve(ports))

    def kill(self) -> None:
        """Switch it off."""
        self.process.kill()

    def forget(self, memory: str, draw: random.Random) -> None:
        """While it is off, its saved map becomes an ``old`` one, loses ``half``, or is lost."""
        if memory == "old" and self._older:
            self.state_file.write_bytes(self._older)
        elif memory == "half" and self.state_file.exists():
            saved = json.loads(self.state_file.read_text())
            saved["circuits"] = [
                each for each in saved["circuits"] if draw.random() < 0.5
            ]
            self.state_file.write_text(json.dumps(saved))
        elif memory == "none":
            self.state_file.unlink(missing_ok=True)

    async def fault(self, **settings: Any) -> None:
        """Set faults of the emulated device, if it is on; see ``EmulatedFaults``."""
        if self.emulated is not None and self.process.alive:
            self.world.log(self.switch.name, f"has the faults {settings}")
            async with self.by_itself():
                self.emulated.faults.update(settings)
                await self.emulated.faults_changed()

    async def next_change(self, within_s: float) -> None:
        """Wait for the next command that changes something."""
        came = asyncio.Event()
        if self.emulated is None:
            return

        def tell(_: int) -> None:
            # Whoever tells it belongs to the device's process.
            self.world.loop.call_soon(came.set, context=contextvars.Context())

        self.emulated.faults.before_change = tell
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await came.wait()

    async def meddle(self, entry: str) -> None:
        """Somebody breaks this entry at the front panel, or makes it if it is missing."""
        if self.emulated is None or not self.process.alive:
            return
        async with self.by_itself():
            if set(type(self.map).parse([entry])) <= set(self.map):
                await self.emulated.lose(entry)
            elif isinstance(self.emulated, EmulatedOcs):
                with contextlib.suppress(RequestRefused):
                    await self.emulated.light(PortMap.parse([entry]))

    async def heal(self) -> None:
        """End its faults."""
        await self.fault(**dataclasses.asdict(EmulatedFaults()))

    @contextlib.asynccontextmanager
    async def by_itself(self) -> AsyncIterator[None]:
        """Nobody has ordered what moves in the block, and until the mirrors rest."""
        self.meddled = _Everything()
        yield
        if self.emulated is not None:
            await self.emulated.come_to_rest()
        self.meddled = ()

    def _tell_of_meddling(self, device: Any) -> None:
        """Nobody has ordered what the fault ``meddle`` moves in the middle of
        a change."""
        meddle = device.faults.on_meddling

        async def told(entries: str) -> None:
            self.meddled = set(type(self.map).parse(entries.split(",")))
            self.world.loop.call_later(
                _MIRRORS_TURN_S, self._rest, context=contextvars.Context()
            )
            await meddle(entries)

        device.faults.on_meddling = told

    def _rest(self) -> None:
        self.meddled = ()

    async def _serve(self, ports: int | None) -> None:
        switch = self.switch
        light: Any = (
            _Light(self)
            if isinstance(switch, CircuitSwitch)
            else _ChannelLight(self)
        )
        if isinstance(switch, CircuitSwitch):
            switch = dataclasses.replace(switch, ports=ports or switch.ports)
            arriving = arriving_dbm(self.plant.lab, switch)
            device: Any = EmulatedOcs(
                switch, arriving, light, state_file=self.state_file
            )
        else:
            device = EmulatedWss(switch, light, state_file=self.state_file)
        self.emulated = device
        self._tell_of_meddling(device)
        self.server = server_class(switch.driver)(device)
        async with self.by_itself():
            await device.open()
            self.moved(light.lit)
        if isinstance(self.server, SshServer):
            self.server.without_ssh = switch.user
        host, _, port = switch.address.rpartition(":")
        if not self.server.dials:
            await asyncio.start_server(self.server.serve, host, int(port))


class OpticalSpeaker(SpeakerProcess):
    """The speaker of an OpenFlow OCS, with calls of the emulated device instead of OpenFlow's
    messages."""

    def __init__(self, device: Device, options: SpeakerOptions) -> None:
        super().__init__(
            device.world, f"speaker-{device.switch.name}", options
        )
        self.device = device

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while line := await reader.readline():
            request = flowtable.decode(line)
            try:
                answer = {"ok": True, "result": await self._answer(request)}
            except ConnectionError:
                answer = {
                    "ok": False,
                    "error": "the connection ended",
                    "kind": "SwitchGone",
                }
            except _EntriesRefused as refused:
                answer = {
                    "ok": False,
                    "error": "refused entries",
                    "failed": refused.failed,
                }
            writer.write(flowtable.encode({"id": request["id"], **answer}))
        writer.close()

    async def _answer(self, request: Mapping[str, Any]) -> Any:
        operation = request["op"]
        switch = self.device.switch
        device = self.device.emulated if self.device.process.alive else None
        if operation == "hello":
            return {
                "protocol": 1,
                "engine": "simulated",
                "engine_version": "1",
            }
        if operation == "switches":
            return (
                [{"datapath_id": self.options.datapath_ids[0]}]
                if device
                else []
            )
        if device is None:
            raise ConnectionError
        assert isinstance(device, EmulatedOcs)
        await device.settle()
        if operation == "describe":
            named = {
                "vendor": "Patchlight",
                "hardware": "emulated",
                "name": switch.name,
            }
            return {"serial": "", "software": "", **named}
        if operation == "ports":
            matrix = device.matrix
            return [
                {
                    "port": port,
                    "name": f"p{port}",
                    "up": True,
                    "enabled": port not in matrix.locked,
                    "blocked": port in matrix.failed,
                }
                for port in range(1, device.switch.ports + 1)
            ]
        if operation == "read_flows":
            flows = [
                _entry(c).to_json()
                for circuit in device.matrix
                for c in circuit.directions
            ]
            return {"flows": flows, "selects": None}
        assert operation == "apply", operation
        async with device.faults.around_command(changes=True) as refusal:
            return await self._apply(device, request, refusal)

    async def _apply(
        self, device: EmulatedOcs, request: Mapping[str, Any], refusal: str
    ) -> Mapping[str, int]:
        failed = []
        made = []
        for item in request.get("removes", ()):
            device.remove_all([device.matrix.find(_cross_connect(item))])
        for item in request.get("adds", ()):
            try:
                if refusal:
                    raise RequestRefused(Reason.LOCKED)
                c = _cross_connect(item)
                made.append((item, device.matrix.find(c) or device.make([c])))
            except RequestRefused as refused:
                failed.append(
                    {"entry": item, "error": refusal or refused.reason.value}
                )
        await device.come_to_rest()
        for item, circuit in made:
            if circuit.phase is Phase.FAILED:
                device.remove(circuit)
                failed.append({"entry": item, "error": "mirrors failed"})
        await device.settle()
        if failed:
            raise _EntriesRefused(failed)
        return {"removed": len(request.get("removes", ())), "added": len(made)}


class _EntriesRefused(Exception):
    def __init__(self, failed: list[dict[str, Any]]) -> None:
        super().__init__()
        self.failed = failed


def _entry(c: CrossConnect) -> FlowEntry:
    out = OFPP_IN_PORT if c.inp == c.out else c.out
    return FlowEntry.ours(Match(in_port=c.inp), (out,), priority=100)


def _cross_connect(item: Any) -> CrossConnect:
    entry = FlowEntry.from_json(item)
    inp = int(str(entry.match.get("in_port")))
    out = entry.outputs[0]
    return CrossConnect(inp, inp if out == OFPP_IN_PORT else out)


def device_links(plant: Plant) -> DeviceLinks:
    """How the controller's drivers reach the devices of a plant."""

    async def launch_speaker(command: Sequence[str]) -> OpticalSpeaker:
        options = SpeakerOptions.from_command(command[-1])
        speaker = OpticalSpeaker(
            next(
                device
                for device in plant.devices.values()
                if isinstance(device.switch, CircuitSwitch)
                and device.switch.datapath_id in options.datapath_ids
            ),
            options,
        )
        plant.speaker_processes.append(speaker.process)
        await asyncio.sleep(0.3)
        await speaker.process.start(speaker.serve())
        return speaker

    return DeviceLinks(
        WithoutTls,
        ssh=False,
        log_in=SimulatedLogin.open,
        launch_speaker=launch_speaker,
        sockets=plant.folder,
    )
