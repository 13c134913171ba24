"""The driver ``waveshaper-http``: Finisar (Coherent) WaveShapers over HTTP.

A WaveShaper has a common port and others; it is 1×N or, lit the other way, N×1. It takes filter
profiles of its whole band (``profile.py``). Each change reads the profile that is there, and loads
it again with the lines of that channel changed and no others. The device asks for no password, says
nothing of its ports and has no power monitors; nor does it say when light passes, so its switching
time is waited for. Run against the emulated device only so far.
"""

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from patchlight.controller.circuits.contract import (
    Alarm,
    Capabilities,
    DeviceRefused,
    DirectedPort,
    Identity,
    PortState,
)
from patchlight.controller.circuits.drivers.table import TABLES_KEPT, UP, Row
from patchlight.controller.circuits.drivers.wavelength import WavelengthSessionDriver
from patchlight.controller.circuits.drivers.waveshaper.profile import BLOCKED_DB, Passing, Profile
from patchlight.controller.circuits.protocols.http import answers
from patchlight.controller.circuits.protocols.http.client import HttpClient
from patchlight.controller.circuits.protocols.http.dialects import WAVESHAPER, WaveShaperDialect
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.spectrum import Channel, ChannelConnect, Grid


class WaveShaper(WavelengthSessionDriver[Row]):
    """A WaveShaper. See ``WavelengthDriver`` for what the methods do."""

    built_in = WAVESHAPER
    client_class = HttpClient
    client: HttpClient
    _dialect: WaveShaperDialect
    capabilities = Capabilities()
    _list_limit = 1 << 16

    @property
    def _first_look_s(self) -> float:
        return self._switch.switching_time_s

    async def open(self) -> None:
        """Reach the device, and see that it has the ports that the lab says."""
        about = await self._about_device()
        count, ports = answers.number(about, self._dialect.port_count_key), self._switch.ports
        if count < ports:
            raise PatchlightError(
                f"{self.name} has {count} ports beside its common one, the lab file says {ports}",
                hint="correct 'inputs' and 'outputs' of the wavelength switch in the lab file",
            )

    async def identify(self) -> Identity:
        """From ``devinfo``."""
        about, dialect = await self._about_device(), self._dialect
        keys = (dialect.model_key, dialect.serial_key, dialect.software_key)
        model, serial, software = (answers.text(about, key) for key in keys)
        return Identity(dialect.vendor, model, serial, software)

    async def port_states(self) -> Mapping[DirectedPort, PortState]:
        """All ready, as far as the device tells: nothing."""
        return dict.fromkeys(self._all_ports(), PortState("ready", "no states are told"))

    async def power(self, ports: Iterable[DirectedPort]) -> Mapping[DirectedPort, float | None]:
        """Nothing: there are no power monitors."""
        self._checked_ports(ports)
        return {}

    async def alarms(self) -> tuple[Alarm, ...]:
        """None: it reports nothing."""
        return ()

    async def _table(self) -> Mapping[ChannelConnect, Row]:
        channels = self._channels(await self._profile())
        return {self._way(c, passing): UP for c, passing in channels.items()}

    async def _make(self, pairs: Sequence[ChannelConnect]) -> None:
        profile = await self._profile()
        held = self._channels(profile)
        for way in pairs:
            if way.attenuation_db >= BLOCKED_DB:
                raise self._will_not(f"{BLOCKED_DB:g} dB or more is no light at all")
            if other := next((c for c in held if c.overlaps(way.channel)), None):
                there = self._way(other, held[other])
                raise self._will_not(f"its channel is in use on the device: {there}")
            passing = Passing(way.out if self._spreads else way.inp, way.attenuation_db)
            profile = self._with(profile, way.channel, passing)
        await self._load(profile)

    async def _break(
        self, pairs: Sequence[ChannelConnect], table: Mapping[ChannelConnect, Row]
    ) -> None:
        profile = await self._profile()
        held = {self._way(c, passing) for c, passing in self._channels(profile).items()}
        for way in pairs:
            # What somebody has led elsewhere meanwhile is not ours to block.
            if way in held:
                profile = self._with(profile, way.channel, None)
        await self._load(profile)

    async def _load(self, profile: Profile) -> None:
        body = json.dumps({"type": "wsp", "wsp": profile.text})
        reply = await self.client.change("POST", self._dialect.load, body)
        self._writes.told = True
        result = reply.body if isinstance(reply.body, dict) else {}
        if (code := result.get(self._dialect.result_key, 0)) != 0:
            words = answers.text(result, self._dialect.words_key) or f"result {code}"
            raise DeviceRefused(f"{self.name} refused the profile: {words}", words=words)

    async def _about_device(self) -> Mapping[str, Any]:
        return await self.client.read(self._dialect.about, answers.only)

    async def _profile(self) -> Profile:
        text = await self.client.get_text(self._dialect.profile)
        try:
            return _parsed(text)
        except ValueError as error:
            raise self.client.nonsense(self._dialect.profile, str(error)) from error

    def _channels(self, profile: Profile) -> Mapping[Channel, Passing]:
        try:
            return _channels(profile, self.grid)
        except ValueError as error:
            raise DeviceRefused(
                f"{self.name} has a profile that is not made of channels: {error}",
                words=str(error),
                hint="load one of channels only, or one that blocks all, by hand",
            ) from error

    def _with(self, profile: Profile, channel: Channel, passing: Passing | None) -> Profile:
        try:
            return profile.with_channel(channel, passing)
        except ValueError as error:
            raise self._will_not(str(error)) from error

    @property
    def _spreads(self) -> bool:
        """Whether its common port is the input."""
        return self.inputs == 1

    def _way(self, channel: Channel, passing: Passing) -> ChannelConnect:
        ports = (1, passing.port) if self._spreads else (passing.port, 1)
        return ChannelConnect(*ports, channel, passing.attenuation_db)

    def _will_not(self, words: str) -> DeviceRefused:
        return DeviceRefused(f"{self.name}: {words}", words=words)


@functools.lru_cache(maxsize=TABLES_KEPT)
def _parsed(text: str) -> Profile:
    return Profile.parse(text)


@functools.lru_cache(maxsize=TABLES_KEPT)
def _channels(profile: Profile, grid: Grid) -> Mapping[Channel, Passing]:
    return profile.channels(grid)
