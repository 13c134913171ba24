"""What tunes the transceivers of a server's NICs: an emulated lab's socket, or CMIS modules."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from patchlight.agents.nics.cmis import CmisLaser, MemoryFile, memory_of
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Endpoint, Nic, Server
from patchlight.testbed.lab.spectrum import Channel
from patchlight.testbed.lab.tuning import LightClient


class Tuner(ABC):
    """Tunes the transmitters of one server. Methods return soon and raise ``PatchlightError``."""

    @abstractmethod
    def tune(self, nic: Nic, channel: Channel) -> None:
        """Make the NIC send on a channel. It is off until it is tuned."""

    @abstractmethod
    def darken(self, nic: Nic) -> None:
        """Switch the NIC's transmitter off."""

    @abstractmethod
    def close(self) -> None:
        """Release what it holds; transmitters stay as they are."""


class EmulatedTuner(Tuner):
    """Tunes the transceivers of an emulated lab over its socket."""

    def __init__(self, server: Server, path: Path) -> None:
        self._server = server
        self._path = path
        self._client: LightClient | None = None

    def tune(self, nic: Nic, channel: Channel) -> None:
        """See ``Tuner``."""
        self._ask(nic, channel)

    def darken(self, nic: Nic) -> None:
        """See ``Tuner``."""
        self._ask(nic, None)

    def close(self) -> None:
        """See ``Tuner``."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _ask(self, nic: Nic, channel: Channel | None) -> None:
        end = Endpoint(self._server.name, nic.name)
        try:
            if self._client is None:
                self._client = LightClient(self._path)
            if channel is None:
                self._client.darken(end)
            else:
                self._client.tune(end, channel, wait=False)
        except PatchlightError:
            # The process behind the socket may have changed.
            self._client = None
            raise


class CmisTuner(Tuner):
    """Tunes the CMIS modules of a server's NICs. Not run against hardware."""

    def __init__(self, lasers: Mapping[str, CmisLaser]) -> None:
        self._lasers = lasers

    def tune(self, nic: Nic, channel: Channel) -> None:
        """See ``Tuner``. The module is verified afterwards, in a thread: see ``CmisLaser``."""
        self._laser(nic).tune(channel)

    def darken(self, nic: Nic) -> None:
        """See ``Tuner``."""
        self._laser(nic).darken()

    def close(self) -> None:
        """See ``Tuner``."""
        for laser in self._lasers.values():
            laser.close()

    def _laser(self, nic: Nic) -> CmisLaser:
        laser = self._lasers.get(nic.name)
        if laser is None:
            raise PatchlightError(
                f"{nic.name}: its module's memory is missing in sysfs",
                hint="load the kernel module optoe, and write the interface's name to the "
                "module's port_name",
            )
        return laser


def cmis_tuner(server: Server, devices: Path) -> CmisTuner | None:
    """The tuner of NICs whose tunable module has its memory below ``devices``; ``None`` if none
    has."""
    lasers = {}
    for nic in server.nics:
        transceiver = nic.transceiver
        if transceiver is None or transceiver.tunable is None:
            continue
        file = memory_of(nic.interface or nic.name, devices)
        if file is not None:
            lasers[nic.name] = CmisLaser(
                MemoryFile(file), nic.name, transceiver.tuning_time_s
            )
    return CmisTuner(lasers) if lasers else None
