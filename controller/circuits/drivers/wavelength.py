"""What drivers of wavelength switches have in common: a table of which channel goes where."""

from collections.abc import Iterable, Mapping, Sequence

from patchlight.controller.circuits.contract import Side, checked_channels
from patchlight.controller.circuits.dialects import Dialect
from patchlight.controller.circuits.drivers.table import R, SessionTable, TableDriver
from patchlight.controller.circuits.protocols.session import DEFAULT_TIMEOUTS, Timeouts
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.ocs_drivers import check_shape
from patchlight.testbed.lab.spectrum import ChannelConnect, Grid, SpectrumMap
from patchlight.testbed.lab.wavelengths import WavelengthSwitch


class WavelengthTableDriver(TableDriver[ChannelConnect, SpectrumMap, R]):
    """See ``WavelengthDriver`` for what the methods do. A driver sets ``client``."""

    _switch: WavelengthSwitch

    @property
    def inputs(self) -> int:
        """How many inputs it has."""
        return self._switch.inputs

    @property
    def outputs(self) -> int:
        """How many outputs it has."""
        return self._switch.outputs

    @property
    def grid(self) -> Grid:
        """Which channels there are."""
        return self._switch.grid

    def _checked(self, pairs: Iterable[ChannelConnect]) -> tuple[ChannelConnect, ...]:
        return checked_channels(pairs, self.inputs, self.outputs, self.grid)

    def _map_of(self, entries: Iterable[ChannelConnect]) -> SpectrumMap:
        return SpectrumMap.of(entries)

    def _count(self, side: Side) -> int:
        return self.inputs if side == "in" else self.outputs

    def _busy(
        self, pairs: Sequence[ChannelConnect], table: Mapping[ChannelConnect, R]
    ) -> dict[ChannelConnect, str]:
        """Those whose light would meet that of an entry of the table, or leave its way."""
        words = {}
        for way in pairs:
            if way not in table and (other := next((w for w in table if way.clashes(w)), None)):
                words[way] = f"its channel is in use on the device: {other}"
        return words


class WavelengthSessionDriver(
    SessionTable[ChannelConnect, SpectrumMap, R], WavelengthTableDriver[R]
):
    """See ``WavelengthDriver``. A driver says its ``client_class``, and its table."""

    def __init__(
        self,
        switch: WavelengthSwitch,
        password: str,
        dialect: Dialect | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        try:
            check_shape(switch)
        except BadInput as error:
            raise BadInput(f"{switch.name}: {error.message}") from error
        super().__init__(switch, password, dialect, timeouts)
