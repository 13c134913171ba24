"""An emulated WaveShaper: profiles of its whole band over HTTP, without a password.

What is the same in a new profile stays lit, and so does a channel of which only the attenuation
changes. All else is dark for the switching time.
"""

from typing import Any

from patchlight.controller.circuits.drivers.waveshaper import Passing, Profile
from patchlight.emulation.optical.device import EmulatedWss
from patchlight.emulation.optical.matrices import Reason
from patchlight.emulation.optical.protocols.http_server import HttpRequest, HttpResponse, HttpServer
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.spectrum import ChannelConnect, SpectrumMap

FIRST_GHZ, LAST_GHZ = 191_250, 196_275
_REFUSALS = {Reason.NO_PORT: (409, "invalid port"), Reason.LOCKED: (409, "port is locked")}


class WaveShaperServer(HttpServer):
    """HTTP with its paths."""

    by_hand = 'curl -s "http://{host}:{port}/waveshaper/getprofile"'
    secure = False
    refusals = _REFUSALS
    refused = (409, "failed")

    _device: EmulatedWss

    def __init__(self, device: EmulatedWss) -> None:
        super().__init__(device)
        self._loaded = Profile.blocked(FIRST_GHZ, LAST_GHZ)

    def report(self, text: str) -> None:
        """Nothing can be reported."""
        raise BadInput("a WaveShaper reports nothing")

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        switch = self._device.switch
        match request.method, request.path:
            case "GET", "/waveshaper/devinfo":
                about: dict[str, object] = {"model": "WaveShaper", "sno": f"EMU-{switch.name}"}
                about |= {"ver": "0.1", "portcount": switch.ports, "rc": 0, "rctext": ""}
                band = {"startfreq": FIRST_GHZ / 1000, "stopfreq": LAST_GHZ / 1000}
                return HttpResponse(200, about | band)
            case "GET", "/waveshaper/getprofile":
                return HttpResponse(200, text=self._now().text)
            case "POST", "/waveshaper/loadprofile":
                return self._load(request.body)
        return HttpResponse(404, {"rc": -1, "rctext": "not found"})

    def _problem(self, status: int, message: str) -> HttpResponse:
        # The interface answers 200 to all that it understands.
        status = 200 if status == 409 else status
        return HttpResponse(status, {"rc": -1, "rctext": message, "sno": ""})

    def _load(self, body: Any) -> HttpResponse:
        kind = body.get("type") if isinstance(body, dict) else None
        try:
            if kind == "blockall":
                profile = Profile.blocked(FIRST_GHZ, LAST_GHZ)
            elif kind == "wsp":
                profile = Profile.parse(str(body.get("wsp", "")))
            else:
                raise ValueError(f"no profile of type {str(kind)[:200]}")
            if (profile.first_ghz, len(profile.lines)) != (FIRST_GHZ, LAST_GHZ - FIRST_GHZ + 1):
                raise ValueError(f"a profile of {profile}: this device has another band")
            wanted = SpectrumMap.of(self._ways(profile))
        except (ValueError, BadInput) as error:
            return self._problem(409, f"invalid profile: {error}")
        self._device.load(wanted)
        self._loaded = profile
        return HttpResponse(200, {"rc": 0, "rctext": "", "sno": f"EMU-{self._device.switch.name}"})

    def _now(self) -> Profile:
        """The profile loaded last, as far as it has not been changed at the device since."""
        held, profile = set(self._device.matrix), self._loaded
        loaded = set(self._ways(profile))
        for way in loaded - held:
            profile = profile.with_channel(way.channel, None)
        for way in held - loaded:
            port = way.out if self._device.switch.inputs == 1 else way.inp
            profile = profile.with_channel(way.channel, Passing(port, way.attenuation_db))
        self._loaded = profile
        return profile

    def _ways(self, profile: Profile) -> list[ChannelConnect]:
        spreads = self._device.switch.inputs == 1
        return [
            ChannelConnect(*((1, port) if spreads else (port, 1)), channel, less_db)
            for channel, (port, less_db) in profile.channels(self._device.switch.grid).items()
        ]
