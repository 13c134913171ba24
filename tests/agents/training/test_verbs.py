"""What a worker says that cannot train over RDMA; over soft RoCE: tests/emulation/servers."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from patchlight.agents.training.task import Member, TrainingError, TrainingTask
from patchlight.agents.training.verbs import VerbsRing


def task(**values: object) -> TrainingTask:
    ring = tuple(
        Member(rank, f"127.0.0.{1 + rank}", 7000) for rank in range(2)
    )
    given: dict[str, object] = {"join_s": 0.1, "gradient_bytes": 4, **values}
    return TrainingTask("w0", "j", 0, ring, 1, transport="rdma", **given)  # type: ignore[arg-type]


@pytest.mark.skipif(
    find_spec("pyverbs") is not None
    or Path("/usr/lib/python3/dist-packages/pyverbs").exists(),
    reason="pyverbs is installed here",
)
def test_without_pyverbs_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "network.json"
    gid = {"device": "rxe0", "port": 1, "index": 1, "gid": "::ffff:127.0.0.1"}
    path.write_text(
        json.dumps({"rdma": {"device": "rxe0", "active": True, "gid": gid}})
    )
    monkeypatch.setenv("PATCHLIGHT_NETWORK", str(path))
    with pytest.raises(
        TrainingError, match="apt-get install python3-pyverbs on each server"
    ):
        VerbsRing(task())


@pytest.mark.parametrize(
    ("network", "why"),
    [
        (None, "No such file"),
        ({"rdma": None}, "it has no RDMA device"),
        (
            {"rdma": {"device": "rxe0", "active": True, "gid": None}},
            "rxe0 has no GID yet",
        ),
        (
            {"rdma": {"device": "rxe0", "active": False, "gid": {}}},
            "rxe0 has no GID yet",
        ),
    ],
)
def test_without_a_gid_it_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: object, why: str
) -> None:
    path = tmp_path / "network.json"
    if network is not None:
        path.write_text(json.dumps(network))
    monkeypatch.setenv("PATCHLIGHT_NETWORK", str(path))
    with pytest.raises(
        TrainingError,
        match=f"no RoCEv2 GID of 127.0.0.1 within 0.1 s: .*{why}",
    ):
        VerbsRing(task())
