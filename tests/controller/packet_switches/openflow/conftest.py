"""A private Open vSwitch, and speakers on each engine, for the tests here."""

import itertools
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchlight.controller.packet_switches.openflow.speaker.__main__ import (
    PACKAGES,
    available,
)
from tests.support.openflow_bench import OpenFlowBench
from tests.support.private_ovs import PrivateOvs

_NUMBERS = itertools.count(1)
# By tests/support/without_ryu, on purpose.
_HIDDEN = getattr(sys.modules.get("sitecustomize"), "HIDDEN", ())


@pytest.fixture(
    scope="module", params=[name for name in PACKAGES if name not in _HIDDEN]
)
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine in turn. In CI neither may be missing."""
    if request.param not in available():
        reason = f"the OpenFlow engine {request.param} is not installed: see deploy/bootstrap.sh"
        if os.environ.get("CI", "").lower() in ("true", "1"):
            pytest.fail(reason)
        pytest.skip(reason)
    return str(request.param)


@pytest.fixture(scope="module")
def ovs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateOvs]:
    name = f"pl.test-{os.getpid()}-of{next(_NUMBERS)}"
    with PrivateOvs(name, tmp_path_factory.mktemp("ovs")) as private:
        yield private


@pytest.fixture
def bench(
    ovs: PrivateOvs, engine: str, tmp_path: Path
) -> Iterator[OpenFlowBench]:
    bench = OpenFlowBench(ovs, engine, tmp_path)
    yield bench
    for name in bench.bridges:
        ovs.vsctl("--if-exists", "del-br", name)


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A TCP port of this machine that this very process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])
