"""Paths of light that are asked for, given, and taken back."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from patchlight.agents.training.light_paths import NoPath, PathClient
from patchlight.cli.main import cli
from patchlight.client.client import ControllerClient, ControllerError
from patchlight.controller.changes.record import Refused
from patchlight.controller.paths.service import PathBook, PathService
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.spectrum import SpectrumMap
from patchlight.testbed.labfile.reader import parse_lab
from patchlight.testbed.paths.light_networks import light_networks
from patchlight.testbed.wire.rest.requests import PathRequest
from tests.support.coloured_labs import STAR, WAVELENGTHS
from tests.support.controller_process import (
    ControllerProcess,
    controller_process,
)
from tests.support.waiting import PATIENCE_S, free_ports

ONE, TWO, THREE, FOUR = (f"server{number}.nic0" for number in range(1, 5))


def wanted(
    source: str, destination: str, nbytes: float, lease_s: float = 10.0
) -> PathRequest:
    return PathRequest(
        source=source, destination=destination, bytes=nbytes, lease_s=lease_s
    )


@pytest.fixture
def book() -> PathBook:
    made = PathBook()
    made.light_is(light_networks(parse_lab(STAR), {}), 0.0)
    return made


def test_a_path_is_granted_waited_for_and_given_back(book: PathBook) -> None:
    first = book.want(wanted(ONE, TWO, 1e6), "eva", 100.0)
    second = book.want(wanted(THREE, TWO, 1e6), "tom", 101.0)
    assert (first.state, first.channel, first.starts_at) == (
        "granted",
        "193.100",
        100.001,
    )
    assert (second.state, second.channel) == ("waiting", None)
    assert book.release(first.id, 102.0).state == "released"
    assert (second.state, second.channel, second.starts_at) == (
        "granted",
        "193.150",
        102.001,
    )
    # Again, and of one that has ended: nothing more.
    assert book.release(first.id, 103.0).ended_at == 102.0
    assert book.look(first.id, 103.0, "eva") is first


def test_what_is_not_heard_of_comes_back(book: PathBook) -> None:
    dead = book.want(wanted(ONE, TWO, 1e6, lease_s=5.0), "eva", 100.0)
    patient = book.want(wanted(THREE, TWO, 1e6, lease_s=3.0), "tom", 100.0)
    gone = book.want(wanted(FOUR, TWO, 1e6, lease_s=3.0), "kim", 100.0)
    book.look(patient.id, 102.5, "tom")
    book.look(gone.id, 102.5, "somebody else")
    assert book.expire(103.0) == 105.0
    assert (dead.state, patient.state, gone.state) == (
        "granted",
        "waiting",
        "expired",
    )
    assert book.expire(105.0) == 108.0
    assert (dead.state, patient.state) == ("expired", "granted")


def test_paths_end_where_the_light_goes_elsewhere() -> None:
    lab = parse_lab(WAVELENGTHS)
    book = PathBook()
    book.light_is(light_networks(lab, {}), 0.0)
    stays = book.want(wanted(THREE, FOUR, 1e6), "eva", 1.0)
    ends = book.want(wanted(ONE, TWO, 1e6), "eva", 1.0)
    moved = {"wss1": SpectrumMap.parse(["1-2@193.150", "3-4@193.100"])}
    book.light_is(light_networks(lab, moved), 2.0)
    assert (stays.state, ends.state) == ("granted", "expired")
    assert book.want(wanted(ONE, TWO, 1e6), "eva", 3.0).channel == "193.150"


@pytest.mark.parametrize(
    ("flow", "words"),
    [
        (
            wanted(ONE, ONE, 1.0),
            "server1.nic0 requests a path to itself: expected another",
        ),
        (
            wanted(ONE, "server9.nic0", 1.0),
            "server9.nic0 cannot have paths: did you mean",
        ),
    ],
)
def test_what_makes_no_sense_is_said_and_leaves_nothing(
    book: PathBook, flow: PathRequest, words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        book.want(flow, "eva", 0.0)
    assert book.live == []
    assert book.want(wanted(ONE, TWO, 1.0), "eva", 0.0).state == "granted"


async def test_another_controller_gives_nothing_while_paths_of_the_last_may_be_in_use(
    tmp_path: Path,
) -> None:
    now = 1000.0
    with contextlib.closing(Store(tmp_path / "controller.db")) as store:

        def controller() -> PathService:
            return PathService(parse_lab(STAR), lambda: {}, lambda: now, store)

        before = await controller().want(
            wanted(ONE, TWO, 1e6, lease_s=30.0), "eva"
        )
        assert before.state == "granted"
        now = 1001.0
        later = controller()
        await later.want(wanted(THREE, TWO, 1e6, lease_s=60.0), "tom")
        assert [each.state for each in later.book.live] == ["waiting"]
        # Who gives the old one back gives back nobody else's.
        with pytest.raises(BadInput, match=f"unknown path {before.id}"):
            later.release(before.id)
        now = 1029.0
        assert later.book.expire(now) > 1030.0
        assert [each.state for each in later.book.live] == ["waiting"]
        now = 1040.0
        later.book.expire(now)
        assert [each.state for each in later.book.live] == ["granted"]


def test_networks_are_apart() -> None:
    book = PathBook()
    book.light_is(light_networks(parse_lab(WAVELENGTHS), {}), 0.0)
    with pytest.raises(
        BadInput, match=r"there is no path from server1\.nic0 to server3\.nic0"
    ):
        book.want(wanted(ONE, THREE, 1.0), "eva", 0.0)
    routed = {"wss1": SpectrumMap.parse(["1>2@193.100", "2>3@193.100"])}
    book.light_is(light_networks(parse_lab(WAVELENGTHS), routed), 0.0)
    with pytest.raises(Refused, match="there is no path"):
        book.want(wanted(TWO, ONE, 1.0), "eva", 0.0)


class _Star(ControllerProcess):
    """A controller of four servers on a star coupler."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (openflow,) = free_ports(1)
        self.lab.write_text(
            f'{STAR}controller: {{openflow: "127.0.0.1:{openflow}"}}\n'
        )


@pytest.fixture(scope="module")
def star(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ControllerProcess]:
    with controller_process(tmp_path_factory.mktemp("star"), _Star) as process:
        yield process


@pytest.mark.xdist_group("a controller of a star")
def test_paths_over_the_api(star: ControllerProcess) -> None:
    client: ControllerClient = star.client
    (network,) = client.paths().networks
    assert (network.hosts, network.routed) == (
        [ONE, TWO, THREE, FOUR],
        False,
    )
    first = client.want_path(ONE, TWO, 1e6)
    # It has to last from one request to the next, also where those take long.
    second = client.want_path(THREE, TWO, 1e6, collective="ring", lease_s=6.0)
    assert (first.state, second.state) == ("granted", "waiting")
    assert client.path(second.id, wait_s=0.05).state == "waiting"
    listed = (
        CliRunner()
        .invoke(cli, ["ocs", "show", "--paths", "--controller", star.api])
        .output
    )
    assert "granted" in listed
    assert "waiting" in listed
    assert "193.100" in listed
    assert client.release_path(first.id).state == "released"
    assert client.path(second.id, wait_s=20.0).state == "granted"
    # Nobody speaks for it any more, and it comes back by itself.
    third = client.want_path(FOUR, TWO, 1e6, lease_s=30.0)
    assert client.path(third.id, wait_s=20.0).state == "granted"
    assert client.path(second.id).state == "expired"
    with pytest.raises(BadInput, match="unknown path 999"):
        client.path(999)
    with pytest.raises(BadInput, match="bytes"):
        client.want_path(ONE, TWO, 0.0)
    with pytest.raises(BadInput, match="lease_s"):
        client.want_path(ONE, TWO, 1.0, lease_s=0.0)
    key = {"Idempotency-Key": "path-1"}
    body = {"source": ONE, "destination": TWO, "bytes": 5, "lease_s": 60}
    options: dict[str, Any] = {"trust_env": False, "timeout": PATIENCE_S}
    answers = [
        httpx.post(
            f"http://{star.api}/v1/paths", json=body, headers=key, **options
        )
        for _ in range(2)
    ]
    assert answers[0].status_code == 201
    assert answers[0].json() == answers[1].json()
    for number in (third.id, answers[0].json()["id"]):
        client.release_path(number)
    refused = httpx.post(
        f"http://{star.api}/v1/paths", json={**body, "bytes": -1}, **options
    )
    assert (refused.status_code, refused.json()["outcome"]) == (
        422,
        "nothing-done",
    )
    with pytest.raises(ControllerError, match="its deadline is in"):
        client.want_path(ONE, FOUR, 1e16, deadline_s=1.0)


@pytest.mark.xdist_group("a controller of a star")
def test_a_worker_has_a_path_for_as_long_as_it_sends(
    star: ControllerProcess,
) -> None:
    worker = PathClient(star.api)
    other = PathClient(star.api)
    with worker.path(FOUR, THREE, 1e6, collective="ring") as path:
        assert (path["state"], path["collective"]) == ("granted", "ring")
        with (
            pytest.raises(
                NoPath,
                match=r"no path from server1\.nic0 to server3\.nic0 in 0\.1 s",
            ),
            other.path(ONE, THREE, 1e6, patience_s=0.1),
        ):
            pytest.fail("two send to one receiver")
    with other.path(ONE, THREE, 1e6) as path:
        assert path["state"] == "granted"
    with (
        pytest.raises(NoPath, match="requests a path to itself"),
        worker.path(ONE, ONE, 1.0),
    ):
        pytest.fail("a path to itself")
    gone = PathClient("127.0.0.1:1")
    with (
        pytest.raises(
            NoPath, match="requesting a path from the controller at"
        ),
        gone.path(ONE, TWO, 1.0),
    ):
        pytest.fail("nobody is there")
    worker.close()
    other.close()
