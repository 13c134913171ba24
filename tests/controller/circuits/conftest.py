from __future__ import annotations

from collections.abc import Iterator

import pytest

from patchlight.controller.circuits.protocols.http.trust import PINS_VARIABLE
from patchlight.controller.circuits.protocols.ssh.host_keys import FILE_VARIABLE


@pytest.fixture(scope="session", autouse=True)
def pins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The pins of emulated devices are no business of this machine's user."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("pins")
        patch.setenv(PINS_VARIABLE, str(folder / "tls-pins"))
        patch.setenv(FILE_VARIABLE, str(folder / "known_hosts"))
        yield
