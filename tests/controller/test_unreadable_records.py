"""Records that cannot be read, in every table: the lab is never less safe than before."""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from patchlight.controller.access.tokens import Attempt, AuditLog, Tokens
from patchlight.controller.api.admission import KeptAnswers
from patchlight.controller.changes.record import (
    ChangeOptions,
    Reconfiguration,
    Refused,
)
from patchlight.controller.circuits.registry import open_driver
from patchlight.controller.hosts.fleet import NicMacs
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.ledger import JobLedger
from patchlight.controller.paths.service import PathService
from patchlight.controller.storage.database import SCHEMAS
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.rules import (
    Allowance,
    Discipline,
    PolicyChoice,
    Role,
)
from patchlight.testbed.wire.rest import requests
from patchlight.testbed.wire.rest.circuits import ClaimAnswer
from tests.support.change_bench import LAB, CircuitsOf
from tests.support.job_cluster import (
    Cluster,
    finish,
    job,
    simulated,
    submit_running,
)

BAD: Mapping[str, object] = {
    "cut": '{"why": "cut',
    "text": '"text"',
    "a list": "[1, 2]",
    "nothing": "null",
    "empty": "",
    "no keys": "{}",
    "other keys": '{"x": {"y": [1]}}',
    "wrong types": json.dumps(
        {
            key: [[]]
            for key in (
                "ocs",
                "port",
                "map",
                "maps",
                "id",
                "by",
                "at",
                "until",
                "used",
            )
        }
    ),
    "not a number": '{"at": NaN, "until": Infinity, "port": NaN}',
    "bytes": b"\xff\xfe{}",
    "binary": b"{}",
    "deep": "[" * 100_000,
}
NOBODY = ChangeOptions()
bad_records = pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
# Reading each table is tried with all of them; in a whole lab some show what becomes of it.
some_bad_records = pytest.mark.parametrize(
    "bad", [BAD[kind] for kind in ("cut", "wrong types", "binary")]
)


@pytest.fixture
def store() -> Store:
    return Store(":memory:")


def spoil(store: Store, table: str, bad: object, where: str = "1") -> None:
    """Put a bad record into these rows; bytes that are no UTF-8 as SQLite's text."""
    value = "CAST(? AS TEXT)" if bad == BAD["bytes"] else "?"
    store.write(f"UPDATE {table} SET record = {value} WHERE {where}", bad)


def circuits(store: Store) -> CircuitsOf:
    """What a controller finds that starts now."""
    switch = replace(
        LAB.circuit_switch("ocs1"), driver="dry-run", address="127.0.0.1:1"
    )
    lab = LAB.with_changes(circuit_switches=(switch,))
    return CircuitsOf(lab, {"ocs1": open_driver(switch)}, store)


async def connect(lab: CircuitsOf, *texts: str) -> str:
    await lab.parts.devices.open()
    more = PortMap.parse(texts)
    record = await lab.change(
        lambda maps: {"ocs1": maps["ocs1"].joined(more)}, "test"
    )
    return record.message if record.state == "refused" else record.state


@bad_records
async def test_a_locked_port_stays_locked(store: Store, bad: object) -> None:
    circuits(store).parts.locks.lock("ocs1", [100, 101], "locked", "ann", "")
    spoil(store, "locks", bad, "port = 100")
    for _ in range(2):  # also for the next controller
        lab = circuits(store)
        assert "ocs1.100 is bad" in await connect(lab, "99>100")
        assert {(k.port, k.kind) for k in lab.parts.locks.all()} == {
            (100, "bad"),
            (101, "locked"),
        }
        assert lab.parts.locks.objections({}, ChangeOptions()) == []
    lab.parts.locks.unlock("ocs1", [100], "ann", "looked at it")
    assert await connect(circuits(store), "99>100") == "committed"


@pytest.mark.parametrize(
    ("columns", "locked"),
    [
        (("ocs1", 100, "x"), 320),
        (("ocs1", "x", ""), 320),
        (("ocs1", 5000, ""), 320),
        (("", 7, ""), 320),
        ((b"\x00", 7, ""), 320),
        (("another", 7, ""), 321),
    ],
)
async def test_a_lock_of_an_unreadable_port_is_one_of_the_whole_switch(
    store: Store, columns: tuple[object, ...], locked: int
) -> None:
    store.write("INSERT INTO locks VALUES (?, ?, ?, '{}')", *columns)
    for _ in range(2):
        locks = circuits(store).parts.locks.all()
        assert len(locks) == locked
        assert {lock.kind for lock in locks} == {"bad"}
    assert "is bad" in await connect(circuits(store), "99>100")


async def test_a_lock_that_is_another_ports_locks_its_own_place(
    store: Store,
) -> None:
    circuits(store).parts.locks.lock("ocs1", [100, 101], "locked", "ann", "")
    store.write(
        "UPDATE locks SET record = (SELECT record FROM locks WHERE port = 101)"
    )
    for _ in range(2):
        kinds = {
            lock.port: lock.kind for lock in circuits(store).parts.locks.all()
        }
        assert kinds == {100: "bad", 101: "locked"}


@pytest.mark.parametrize(
    "columns",
    [
        "ocs = 'another'",
        "ocs = 'ocs1 '",
        "ocs = x'00'",
        "port = 102",
        "port = 'x'",
    ],
)
async def test_a_lock_with_another_place_in_its_columns_locks_both(
    store: Store, columns: str
) -> None:
    circuits(store).parts.locks.lock("ocs1", [100, 101], "locked", "ann", "")
    store.write(f"UPDATE locks SET {columns} WHERE port = 100")
    for _ in range(2):
        lab = circuits(store)
        assert "ocs1.100 is bad" in await connect(lab, "99>100")
        locks = {
            lock.port: lock.kind
            for lock in lab.parts.locks.all()
            if lock.ocs == "ocs1"
        }
        other = {102: "bad"} if columns == "port = 102" else {}
        assert locks == {100: "bad", 101: "locked", **other}


async def test_the_lock_under_another_ports_record_is_not_restored(
    store: Store,
) -> None:
    locks = circuits(store).parts.locks
    locks.lock("ocs1", [100, 101], "locked", "ann", "")
    row, other = ({**asdict(lock), "kind": "bad"} for lock in locks.all())
    spoil(store, "locks", json.dumps({**row, "under": other}), "port = 100")
    (found, _) = circuits(store).parts.locks.all()
    assert (found.port, found.kind, found.why) == (
        100,
        "bad",
        "a lock: its record could not be read",
    )


def hold_claims(store: Store) -> None:
    """Claims c1 and c2, which hold port 100 and port 101."""
    book = circuits(store).parts.claims
    for name, port in (("c1", 100), ("c2", 101)):
        claim = book.add(
            ClaimAnswer(
                name=name,
                number=0,
                state="waiting",
                words="",
                hosts=[],
                ports={"ocs1": [port]},
                shape="switch",
                time_limit_s=60.0,
                hold_s=0.0,
                by="ann",
                why="",
                owned={},
                circuits={},
                reconfiguration=None,
                made_at=1.0,
                held_at=None,
                until=None,
                ended_at=None,
            )
        )
        book.hold(
            claim,
            [],
            {},
            claim.ports,
            1.0,
        )


@bad_records
async def test_the_ports_of_an_unreadable_claim_stay_closed(
    store: Store, bad: object
) -> None:
    hold_claims(store)
    spoil(store, "claims", bad, "name = 'c1'")
    for _ in range(2):  # also for the next controller
        lab = circuits(store)
        book = lab.parts.claims
        book.sweep()
        book.expire(1e12)
        assert [(claim.name, claim.state) for claim in book.live] == [
            ("c1", "held")
        ]
        assert "ocs1.100 is claimed by c1" in await connect(lab, "99>100")
        assert book.find("c1").words == "its record could not be read"
    book.end(book.find("c1"), "released", "", 2.0)
    assert await connect(circuits(store), "99>100") == "committed"


@pytest.mark.parametrize(
    "columns",
    ["name = 'c3'", "name = x'00ff'", "name = ''", "name = 7"],
)
async def test_the_ports_of_a_claim_with_an_unreadable_name_stay_closed(
    store: Store, columns: str
) -> None:
    hold_claims(store)
    store.write(f"UPDATE claims SET {columns} WHERE name = 'c1'")
    for _ in range(2):
        lab = circuits(store)
        lab.parts.claims.sweep()
        assert "ocs1.100 is claimed by c1" in await connect(lab, "99>100")
        (lost,) = (
            claim for claim in lab.parts.claims.live if claim.name != "c2"
        )
        assert lost.words == "its record could not be read"
    lab.parts.locks.disclaim("c1")  # a release does this
    assert await connect(circuits(store), "99>100") == "committed"


@bad_records
async def test_a_stop_stays_a_stop(store: Store, bad: object) -> None:
    circuits(store).parts.stop.press("ann", "smoke")
    spoil(store, "marks", bad)
    assert "the stop button was pressed" in await connect(
        circuits(store), "99>100"
    )
    circuits(store).parts.stop.clear("ann", "")
    assert await connect(circuits(store), "99>100") == "committed"


@pytest.mark.parametrize("name", [b"\x00\xff", "", "st op", "st\u00f6p", 7])
async def test_a_stop_whose_name_cannot_be_read_stays_a_stop(
    name: object, tmp_path: Path
) -> None:
    path = tmp_path / "controller.db"
    store = Store(path)
    circuits(store).parts.stop.press("ann", "smoke")
    store.write("UPDATE marks SET name = ? WHERE name = 'stop'", name)
    store.close()
    store = Store(path)
    assert "the stop button was pressed" in await connect(
        circuits(store), "99>100"
    )
    circuits(store).parts.stop.clear("ann", "")
    assert await connect(circuits(store), "99>100") == "committed"
    store.close()
    store = Store(path)  # it is set aside once
    assert circuits(store).parts.stop.pressed is None
    store.close()


@pytest.mark.parametrize("name", ["stoq", "policies", "usage", "drained"])
async def test_a_stop_with_the_name_of_another_mark_stays_a_stop(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "controller.db"
    store = Store(path)
    circuits(store).parts.stop.press("ann", "smoke")
    store.write("UPDATE marks SET name = ? WHERE name = 'stop'", name)
    store.close()
    store = Store(path)
    assert "the stop button was pressed" in await connect(
        circuits(store), "99>100"
    )
    circuits(store).parts.stop.clear("ann", "")
    store.close()
    store = Store(path)
    assert await connect(circuits(store), "99>100") == "committed"
    store.close()


def test_a_mark_reads_what_was_stored(tmp_path: Path) -> None:
    path = tmp_path / "controller.db"
    store = Store(path)
    store.set_mark("usage", {"ann": [1.0, 2.0, 1.0]})
    store.close()
    store = Store(path)
    assert store.mark("usage", dict, unreadable=None) == {
        "ann": [1.0, 2.0, 1.0]
    }
    assert store.troubles()["set_aside"] == 0
    store.close()


def intent(**more: Any) -> dict[str, Any]:
    """A change that a controller left when it was killed."""
    changes = {"ocs1": {"breaks": [], "makes": ["99>100"]}}
    before = {"ocs1": list[str]()}
    wanted = {"ocs1": ["99>100"]}
    record = Reconfiguration(
        "test", 1.0, changes=changes, before=before, wanted=wanted
    )
    return record.as_row | more


@bad_records
async def test_what_an_unreadable_change_may_have_touched_is_locked(
    store: Store, bad: object
) -> None:
    store.prepared_intent(0, intent())()
    spoil(store, "reconfigurations", bad)
    assert [row.state for row in store.reconfigurations()] == ["intent"]
    for _ in range(2):
        lab = circuits(store)
        await lab.parts.devices.open()
        await lab.watch.begin()
        (row,) = store.reconfigurations()
        assert (row.id, row.state) == (1, "unknown")
        assert (
            "its record could not be read: its changes on ocs1" in row.message
        )
        assert len(lab.parts.locks.all()) == 320
    assert "is bad" in await connect(lab, "99>100")
    lab.parts.locks.unlock("ocs1", [99, 100], "ann", "")
    assert await connect(lab, "99>100") == "committed"


@pytest.mark.parametrize(
    ("record", "ports"),
    [
        ({"wanted": 5}, [99, 100]),
        ({"started_at": "x"}, [99, 100]),
        ({"before": {}, "wanted": {}}, [99, 100]),
        ({"wanted": {"ocs1": []}}, [99, 100]),
        (
            {"changes": {"ocs1": {"makes": ["99>100"]}}, "wanted": 5},
            range(1, 321),
        ),
        (
            {"changes": {"ocs1": {"breaks": [], "makes": ["9"]}}, "wanted": 5},
            range(1, 321),
        ),
        ({"changes": {"another": {}}, "wanted": 5}, range(1, 321)),
    ],
)
async def test_the_ports_that_an_unreadable_change_names_are_locked(
    store: Store, record: dict[str, Any], ports: Any
) -> None:
    store.prepared_intent(0, intent(**record))()
    lab = circuits(store)
    await lab.parts.devices.open()
    await lab.watch.begin()
    assert [lock.port for lock in lab.parts.locks.all()] == [*ports]
    assert store.reconfigurations()[0].state == "unknown"


async def test_a_change_in_an_unknown_state_is_one_that_has_not_ended(
    store: Store,
) -> None:
    store.prepared_intent(0, intent())()
    store.write("UPDATE reconfigurations SET state = 'commit'")
    lab = circuits(store)
    await lab.parts.devices.open()
    await lab.watch.begin()
    assert store.reconfigurations()[0].state == "rolled-back"


@pytest.mark.parametrize("state", ["committed", "rolled-back", "refused"])
async def test_an_intent_that_another_state_hides_is_undone(
    state: str, tmp_path: Path
) -> None:
    path = tmp_path / "controller.db"
    store = Store(path)
    store.prepared_intent(0, intent())()
    store.write("UPDATE reconfigurations SET state = ?", state)
    store.close()
    store = Store(path)
    lab = circuits(store)
    await lab.parts.devices.open()
    await lab.watch.begin()
    assert store.reconfigurations()[0].state == "rolled-back"
    store.close()


@bad_records
async def test_the_history_names_what_it_cannot_show_and_gives_no_number_twice(
    store: Store, bad: object
) -> None:
    lab = circuits(store)
    for text in ("99>100", "98>101"):
        await connect(lab, text)
    spoil(store, "reconfigurations", bad, "id = 2")
    spoil(store, "events", bad, "number = (SELECT max(number) FROM events)")
    latest = store.last_event()
    lab = circuits(store)
    first, lost = store.reconfigurations()
    assert first.changes
    assert (lost.id, lost.message) == (2, "its record could not be read")
    assert [
        event["number"] for event in store.events() if event["number"] > latest
    ] == [latest + 1]
    await connect(lab, "97>102")
    assert [row.id for row in store.reconfigurations()] == [1, 2, 3]
    with pytest.raises(BadInput, match="its record could not be read"):
        await lab.service.roll_back(
            2, requests.ChangeRequest(), replace(NOBODY)
        )


@bad_records
async def test_an_unreadable_committed_map_hides_no_drift(
    store: Store, bad: object
) -> None:
    lab = circuits(store)
    await lab.parts.devices.open()
    await lab.watch.begin()
    spoil(store, "committed", bad)
    for _ in range(2):
        again = CircuitsOf(lab.lab, lab.drivers, store)
        await again.parts.devices.open()
        await again.watch.begin()
        assert again.watch.drift["ocs1"].unknown, "all circuits are drift"
        assert (await again.service.drift()).drift["ocs1"].unknown
        with pytest.raises(
            Refused, match="committed map of ocs1 could not be read"
        ):
            await again.service.repair(
                requests.RepairRequest(ocs=["ocs1"], why=""), NOBODY
            )
        assert await connect(again, "99>100") == "committed"
    await again.service.adopt(
        requests.PresentMapsRequest(ocs=["ocs1"], why=""), NOBODY
    )
    again = CircuitsOf(lab.lab, lab.drivers, store)
    assert not (await again.transactions.drift())["ocs1"]


@pytest.mark.parametrize(
    "columns",
    ["ocs = 'another'", "ocs = x'00'", "ocs = 'another', record = ''"],
)
async def test_a_committed_map_with_another_switch_in_its_column_hides_no_drift(
    store: Store, columns: str
) -> None:
    lab = circuits(store)
    await lab.parts.devices.open()
    await lab.watch.begin()
    store.write(f"UPDATE committed SET {columns}")
    for _ in range(2):
        again = CircuitsOf(lab.lab, lab.drivers, store)
        await again.parts.devices.open()
        await again.watch.begin()
        assert again.watch.drift["ocs1"].unknown, "all circuits are drift"
    await again.service.adopt(
        requests.PresentMapsRequest(ocs=["ocs1"], why=""), NOBODY
    )
    again = CircuitsOf(lab.lab, lab.drivers, store)
    assert not (await again.transactions.drift())["ocs1"]


async def test_the_map_of_a_switch_that_the_lab_lost_makes_no_drift(
    store: Store,
) -> None:
    store.commit_maps(
        {"another": {"map": ["1>2"], "reconfiguration": None, "at": 1.0}}
    )
    lab = circuits(store)
    await lab.parts.devices.open()
    await lab.watch.begin()
    assert not lab.watch.drift["ocs1"]


@bad_records
async def test_unreadable_saved_maps_are_named_and_not_restored(
    store: Store, bad: object
) -> None:
    lab = circuits(store)
    await lab.parts.devices.open()
    for name in ("good", "lost"):
        request = requests.PresentMapsRequest(ocs=["ocs1"], why="")
        await lab.service.save(name, request, NOBODY)
    spoil(store, "saved", bad, "name = 'lost'")
    for _ in range(2):
        rows = {row.name: row for row in (await lab.service.saved_maps()).maps}
        assert rows["good"].maps["ocs1"]
        assert rows["lost"].why == "its record could not be read"
        with pytest.raises(Refused, match="its record could not be read"):
            await lab.service.restore("lost", requests.ChangeRequest(), NOBODY)
    await lab.service.forget("lost")
    assert list(store.saved_maps()) == ["good"]


@pytest.mark.parametrize(
    ("kept", "shown"), [("x'00ff'", "00ff"), ("NULL", "")]
)
def test_a_saved_map_with_an_unreadable_name_has_another(
    store: Store, kept: str, shown: str
) -> None:
    for name in ("good", "lost"):
        store.save_map(name, {"maps": {}, "by": "ann", "why": "", "at": 1.0})
    store.write(f"UPDATE saved SET name = {kept} WHERE name = 'lost'")
    for _ in range(2):
        rows = store.saved_maps()
        assert rows["good"].by == "ann"
        assert rows[shown].why == "its record could not be read"
    store.delete_map(shown)
    assert list(store.saved_maps()) == ["good"]


def test_a_saved_map_with_another_ones_name_has_no_circuits(
    store: Store,
) -> None:
    store.save_map(
        "night", {"maps": {"ocs1": ["1>2"]}, "by": "ann", "why": "", "at": 1.0}
    )
    store.write("UPDATE saved SET name = 'day'")
    (lost,) = store.saved_maps().values()
    assert (lost.name, lost.maps) == ("day", {})
    assert lost.why == "its record could not be read"


@pytest.mark.parametrize(
    "readings", ["", "x", "nan", "inf", "-3.5 nan", b"\xff"]
)
def test_an_unreadable_baseline_is_none(
    store: Store, readings: object
) -> None:
    store.save_baselines(
        {("ocs1", 1, 2, ""): [-3.5], ("ocs1", 3, 4, ""): [-4.0]}
    )
    store.write("UPDATE baselines SET readings = ? WHERE inp = 3", readings)
    assert store.baselines("ocs1") == {("ocs1", 1, 2, ""): (-3.5,)}


@bad_records
def test_an_unreadable_token_gives_no_rights(
    store: Store, bad: object
) -> None:
    tokens = Tokens(store)
    (_, good), (lost, text) = (
        tokens.create(name, Role.ADMIN, "root") for name in ("a", "b")
    )
    spoil(store, "tokens", bad, f"id = '{lost.id}'")
    assert tokens.holder(text) is None
    assert tokens.holder(good) is not None
    assert [each.user for each in tokens.all()] == ["a"]


@pytest.mark.parametrize(
    "change",
    [
        {"id": "0"},
        {"role": "king"},
        {"expires_at": 1e12},
        {"revoked_at": "x"},
        {"user": None},
    ],
)
def test_a_token_with_another_ones_record_gives_no_rights(
    store: Store, change: dict[str, Any]
) -> None:
    tokens = Tokens(store)
    made, text = tokens.create("ann", Role.VIEWER, "root")
    spoil(store, "tokens", json.dumps({**dict(made), **change}))
    assert tokens.holder(text) is None
    assert tokens.all() == []


@pytest.mark.parametrize("bad", [None, 5, b"\x00"])
def test_a_token_without_a_hash_gives_no_rights(
    store: Store, bad: object
) -> None:
    tokens = Tokens(store)
    _, text = tokens.create("ann", Role.VIEWER, "root")
    store.write("UPDATE tokens SET hash = coalesce(?, '')", bad)
    assert tokens.holder(text) is None


@bad_records
def test_the_audit_log_names_what_it_cannot_show(
    store: Store, bad: object
) -> None:
    store.write(
        "INSERT INTO audit (at, who, outcome, record) VALUES (1.0, 'ann', 'done', "
        f"{'CAST(? AS TEXT)' if bad == BAD['bytes'] else '?'})",
        bad,
    )
    log = AuditLog(store)
    log.add(Attempt("ben", "", "user", "POST /v1/jobs", "done", 200))
    lost, found = log.rows(9)
    assert (lost.by, lost.what) == (
        "ann",
        "its record could not be read",
    )
    assert found.by == "ben"


@pytest.mark.parametrize(
    "columns",
    ["status = 'x', body = x'00'", "status = 7, body = x'00'", "status = 200"],
)
def test_an_unreadable_answer_is_an_unknown_one(
    store: Store, columns: str
) -> None:
    kept = KeptAnswers(store)
    assert kept.begin("ann", "key", "POST /v1/jobs", b"{}") is None
    store.write(f"UPDATE answered SET {columns}")
    again = kept.begin("ann", "key", "POST /v1/jobs", b"{}")
    assert again is not None
    assert again.status_code == 409


@bad_records
def test_paths_that_may_be_in_use_are_waited_for(
    store: Store, bad: object
) -> None:
    store.set_mark("paths", {"until": time.time() + 60, "last": 7})
    name = store.rows("SELECT name FROM marks")[0][0]
    before = PathService(LAB, lambda: None, store=store).book
    spoil(store, "marks", bad)
    book = PathService(LAB, lambda: None, store=store).book
    assert name == "paths"
    assert book.last > before.last
    assert book._quiet_until >= time.time() + 3500


@bad_records
def test_macs_are_those_of_the_lab_file(store: Store, bad: object) -> None:
    store.set_mark("macs", {"server1.nic0": "02:00:00:00:00:01"})
    spoil(store, "marks", bad)
    macs = NicMacs(LAB, store)
    assert [macs.of(host) for host in LAB.hosts] == [
        host.nic.mac for host in LAB.hosts
    ]


async def spoil_and_restart(
    cluster: Cluster, table: str, bad: object, where: str = "1"
) -> None:
    spoil(cluster.store, table, bad, where)
    await cluster.kill_and_restart()


@some_bad_records
@simulated(PolicyChoice(defragment=True, interleave=True))
async def test_nothing_moves_by_itself_without_a_readable_choice(
    cluster: Cluster, bad: object
) -> None:
    await cluster.scheduler.policies.use(PolicyChoice(defragment=False))
    await spoil_and_restart(cluster, "marks", bad, "name = 'policies'")
    assert not cluster.scheduler.policies.choice.defragment
    assert not cluster.scheduler.policies.choice.interleave


@some_bad_records
@simulated()
async def test_a_drained_controller_stays_drained(
    cluster: Cluster, bad: object
) -> None:
    await cluster.scheduler.drain("maintenance")
    await spoil_and_restart(cluster, "marks", bad, "name = 'drained'")
    assert cluster.scheduler.drained


USED_UP = Discipline(each_user=Allowance(gpu_hours=1e-6), quota_window_s=1e9)


@pytest.mark.parametrize(
    "bad",
    [
        BAD["cut"],
        BAD["no keys"],
        '{"ann": [0, 1e12, 0]}',
        '{"ann": [-9, 1, -9]}',
    ],
)
@simulated(discipline=USED_UP)
async def test_used_quotas_are_counted_again_from_the_jobs(
    cluster: Cluster, bad: object
) -> None:
    (used,) = cluster.scheduler.submit([job("used", "gpu0")], "keep", by="ann")
    await cluster.until_trains(used.id)
    await finish(cluster, used.id)
    cluster.store.set_mark("usage", {"ann": [9.0, time.time(), 9.0]})
    await spoil_and_restart(cluster, "marks", bad, "name = 'usage'")
    if bad == BAD["no keys"]:
        return  # nobody has used anything
    (waits,) = cluster.scheduler.submit(
        [job("more", "gpu0")], "keep", by="ann"
    )
    await cluster.until(
        lambda: "the quota" in cluster.scheduler.job(waits.id).message
    )


@some_bad_records
@simulated()
async def test_the_hosts_of_a_job_without_a_record_are_not_given_to_others(
    cluster: Cluster, bad: object
) -> None:
    ran, other = await submit_running(
        cluster, job("ran", "gpu0"), job("other", "gpu1")
    )
    await spoil_and_restart(cluster, "jobs", bad, f"id = '{ran}'")
    assert cluster.table[other].state is JobState.RUNNING
    lost = cluster.table[ran]
    assert (lost.state, lost.by) == (JobState.FAILED, "")
    assert (
        "its record could not be read: its workers keep running"
        in lost.message
    )
    (waits,) = cluster.submit(job("waits", "gpu0"))
    words = f"a worker of job {ran}"
    await cluster.until(lambda: words in cluster.scheduler.job(waits).message)
    await asyncio.sleep(30)  # simulated: costs no time
    assert f"{ran}-0" in cluster.workers, "it goes on"
    await cluster.kill_and_restart()
    await cluster.until(lambda: words in cluster.scheduler.job(waits).message)
    await cluster.scheduler.stop(ran)
    await cluster.until_state(waits, JobState.RUNNING)
    assert f"{ran}-0" not in cluster.workers


@pytest.mark.parametrize(
    "columns", ["id = 'x-1'", "state = 'done'", "id = x'00'"]
)
def test_the_workers_of_a_job_with_another_ones_columns_go_on(
    columns: str, store: Store
) -> None:
    ledger = JobLedger(store)
    ran = JobStatus("ran-1", JobSpec("ran"), JobState.RUNNING)
    ledger.save(
        [ran, replace(ran, id="ended-1", state=JobState.DONE, finished_at=1.0)]
    )
    store.write(f"UPDATE jobs SET {columns} WHERE id = 'ran-1'")
    for _ in range(2):
        table = JobTable(JobLedger(store))
        assert table.live() == []
        assert {"ran-1"} <= table.unreadable <= {"ran-1", "x-1"}
        assert table["ended-1"].state is JobState.DONE


def test_a_job_without_a_record_is_kept_until_it_is_stopped(
    store: Store,
) -> None:
    ledger = JobLedger(store)
    ran = JobStatus("ran-1", JobSpec("ran"), JobState.RUNNING)
    ledger.save(
        [ran, replace(ran, id="ended-1", state=JobState.DONE, finished_at=1.0)]
    )
    spoil(store, "jobs", BAD["cut"], "id = 'ran-1'")
    assert ledger.unfinished() == []
    later = time.time() + 1e6
    assert ledger.forget(before=later, keep=0) == (["ended-1"], False)
    assert ledger.unreadable() == {"ran-1"}
    (lost,) = ledger.page(9)
    ledger.save(
        [replace(lost, state=JobState.STOPPED, message="stopped by the user")]
    )
    assert ledger.forget(before=later, keep=0) == (["ran-1"], False)


def test_the_workers_of_a_job_without_a_record_go_on_while_the_disk_is_full(
    store: Store,
) -> None:
    JobLedger(store).save(
        [JobStatus("ran-1", JobSpec("ran"), JobState.RUNNING)]
    )
    spoil(store, "jobs", BAD["cut"])
    store.rows("PRAGMA query_only = ON")
    full = JobTable(JobLedger(store))
    assert (full.live(), full.unreadable) == ([], {"ran-1"})


@pytest.mark.parametrize(
    "change", ["state = 'done'", "id = 'x-1'", "name = 'y', id = 'z-1'"]
)
@simulated()
async def test_a_job_whose_columns_differ_from_its_record_is_unreadable(
    cluster: Cluster, change: str
) -> None:
    await submit_running(cluster, job("ran", "gpu0"))
    cluster.store.write(f"UPDATE jobs SET {change}")
    await cluster.kill_and_restart()
    assert cluster.table.live() == []
    found = cluster.table.page()
    assert found
    assert all("could not be read" in lost.message for lost in found)


@simulated()
async def test_a_job_on_a_host_that_the_lab_does_not_have_ends_alone(
    cluster: Cluster,
) -> None:
    ran, other = await submit_running(
        cluster, job("ran", "gpu0"), job("other", "gpu1")
    )
    record = {**cluster.table[ran].as_record, "hosts": ["nowhere"]}
    await spoil_and_restart(
        cluster, "jobs", json.dumps(record), f"id = '{ran}'"
    )
    await cluster.until_state(ran, JobState.FAILED)
    assert "the lab file has no nowhere" in cluster.table[ran].message
    assert cluster.table[other].state is JobState.RUNNING


@pytest.mark.parametrize(
    "columns", ["at = 'x'", "at = x'00'", "record = '{\"message\": 5}'"]
)
def test_the_history_of_a_job_lacks_what_cannot_be_read(
    store: Store, columns: str
) -> None:
    ledger = JobLedger(store)
    ran = JobStatus("ran-1", JobSpec("ran"), JobState.RUNNING)
    told = {"job": "ran-1", "message": ""}
    ledger.save([ran], [(1.0, "job-queued", told), (2.0, "job-running", told)])
    store.write(f"UPDATE events SET {columns} WHERE number = 1")
    states = [each["state"] for each in ledger.history("ran-1")]
    assert states == ["running"]


def test_an_event_of_an_unreadable_kind_is_missing(store: Store) -> None:
    store.add_events("alarm", [(1.0, {}), (2.0, {})])
    store.write("UPDATE events SET kind = x'00ff' WHERE number = 1")
    assert [event["number"] for event in store.events()][:1] == [2]


@bad_records
def test_reports_and_decisions_that_cannot_be_read_are_missing(
    store: Store, bad: object
) -> None:
    ledger = JobLedger(store)
    report = {"rank": 0, "finished_at": 1.0}
    ledger.add_iterations(
        "j", [{**report, "index": n, "ordinal": n} for n in range(3)]
    )
    for n in range(3):
        ledger.add_decision("j", 1.0, {"policy": "packed", "answer": n})
    spoil(store, "iterations", bad, "number = 2")
    spoil(store, "decisions", bad, "number = 2")
    assert [each["index"] for each in ledger.iterations("j")[0]] == [0, 2]
    assert ledger.reports_by_rank("j", 0) == {0: 3}
    if (
        not str(bad).startswith("{") or bad == BAD["cut"]
    ):  # what is an object is shown
        assert [each["answer"] for each in ledger.decisions("j")] == [0, 2]
    spoil(store, "decisions", '{"light": 5}', "number = 3")
    assert 3 not in [each["number"] for each in ledger.decisions("j")]


TABLES = {
    "reconfigurations",
    "jobs",
    "iterations",
    "events",
    "committed",
    "locks",
    "saved",
    "marks",
    "baselines",
    "set_aside",
    "decisions",
    "tokens",
    "audit",
    "answered",
    "claims",
}


def test_every_table_is_tried_here(store: Store) -> None:
    assert len(SCHEMAS) == 7, (
        "a new table needs a test of records that cannot be read"
    )
    found = {
        name
        for (name,) in store.rows(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        )
    }
    assert found == TABLES
