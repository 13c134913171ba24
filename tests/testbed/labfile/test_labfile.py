"""Lab files that are good, where they are found, and what emulated circuit switches are told."""

from pathlib import Path

import pytest

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.rules import (
    KINDS,
    Allowance,
    Discipline,
    WorkerPolicy,
)
from patchlight.testbed.lab.wavelengths import Emulation, OcsFault, OcsUser
from patchlight.testbed.labfile.reader import (
    LabFileError,
    builtin_labs,
    find_lab,
    load_lab,
    parse_lab,
    read_lab,
)
from patchlight.testbed.labfile.writer import write_commented_lab, write_lab
from tests.support.lab_files import SMALL_LAB
from tests.support.tables import mistakes, unmarked


def test_the_good_file_is_good() -> None:
    lab = parse_lab(SMALL_LAB)
    assert lab.scale == 1000
    assert lab.servers[1].nics[0].mac == "02:00:00:00:00:01"
    assert lab.servers[0].nics[0].mac == "02:4c:c0:a8:0a:0b"
    assert lab.circuit_switch("ocs1").initial.texts == ("1-3", "2>4")
    assert lab.packet_switches[1].launch_power_dbm == -3


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "none.yaml", "No such file"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(
            LabFileError, match=f"{path}:1:1: cannot be read .{reason}"
        ):
            read_lab(path)
    with pytest.raises(LabFileError, match="cannot be read"):
        read_lab("a\0b")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"name: x\nnetwork: \xff\n")
    with pytest.raises(
        LabFileError, match=r"binary\.yaml:2:10: byte 0xff is not UTF-8"
    ):
        read_lab(binary)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_text(SMALL_LAB, encoding="utf-8-sig")
    assert read_lab(path) == parse_lab(SMALL_LAB)


def test_words_that_yaml_guesses_about_are_just_words() -> None:
    lab = parse_lab(
        SMALL_LAB.replace("server1", "on").replace("server2", "no")
    )
    assert [server.name for server in lab.servers] == ["on", "no"]


def test_a_lab_is_found_by_path_or_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "ofc2022" in builtin_labs()
    (tmp_path / "ofc2022").mkdir()  # A folder of that name is not a lab file.
    assert read_lab(find_lab("ofc2022")).name == "ofc2022"
    (tmp_path / "mine.yaml").write_text(SMALL_LAB)
    assert load_lab("mine.yaml").name == "small"
    with pytest.raises(
        BadInput,
        match=r"no lab file and no built-in lab 'ofc2023': did you mean 'ofc2022'",
    ):
        find_lab("ofc2023")
    with pytest.raises(BadInput, match="no built-in lab"):
        find_lab("a\0b")


@pytest.mark.parametrize("name", builtin_labs())
def test_every_built_in_lab_is_good(name: str) -> None:
    assert load_lab(name).name == name


LONE_SWITCH = """
name: bench
circuit_switches: [{name: ocs1, driver: polatis-scpi, address: "127.0.0.1:5025", ports: 32}]
"""


def test_what_workers_may_have_is_read_and_written_again() -> None:
    text = """\
name: shared
workers:
  images: [pytorch/*, "registry.lab:5000/*"]
  mounts: [/srv/data, "/srv/saved:rw"]
  memory: 64GB
  cpus: 7.5
  user: trainer
"""
    lab = parse_lab(text)
    expected = WorkerPolicy(
        ("pytorch/*", "registry.lab:5000/*"),
        ("/srv/data", "/srv/saved:rw"),
        64 * 10**9,
        cpus=7.5,
        user="trainer",
    )
    assert lab.workers == expected
    assert parse_lab(write_lab(lab)) == lab
    assert parse_lab(write_commented_lab(lab)) == lab
    assert parse_lab("name: plain").workers == WorkerPolicy()
    assert "workers" not in write_lab(parse_lab("name: plain"))
    nobody = parse_lab("name: shut\nworkers: {images: [], mounts: []}")
    assert nobody.workers == WorkerPolicy((), ())
    assert parse_lab(write_lab(nobody)) == nobody


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("{mounts: [/]}", "not a folder of the servers"),
        ("{mounts: [/srv/../etc]}", "not a folder of the servers"),
        ("{mounts: [data]}", "not a folder of the servers"),
        ('{mounts: ["/:rw"]}', "not a folder of the servers"),
        ("{memory: 1MB}", "out of bounds"),
        ("{cpus: 0}", "a number of CPUs"),
        ("{devices: [/dev/kvm]}", "devices"),
        ("{user: -x}", "is not a user"),
    ],
)
def test_what_workers_cannot_be_allowed_is_refused(
    said: str, words: str
) -> None:
    with pytest.raises(LabFileError, match=words):
        parse_lab(f"name: shared\nworkers: {said}\n")


def test_how_jobs_wait_is_read_and_written_again() -> None:
    text = """\
name: shared
queue:
  backfill: true
  quantum: 10min
  half_life: 3d
  each_user: {gpus: 4, gpu_hours: 100.5}
  users:
    - {name: ann, share: 2, gpus: 8}
    - {name: bob@lab, jobs: 3}
  keep_jobs: 500
  keep_for: 90d
"""
    lab = parse_lab(text)
    queue = lab.queue
    assert (queue.backfill, queue.preempt, queue.quantum_s) == (
        True,
        False,
        600,
    )
    assert queue.half_life_s == 3 * 86400
    assert (queue.keep_jobs, queue.keep_for_s) == (500, 90 * 86400)
    # What is not said of one user is what everybody may have.
    assert queue.allowance("ann") == Allowance(
        share=2, gpus=8, gpu_hours=100.5
    )
    assert queue.allowance("bob@lab") == Allowance(
        gpus=4, jobs=3, gpu_hours=100.5
    )
    assert queue.allowance("eve") == Allowance(gpus=4, gpu_hours=100.5)
    assert parse_lab(write_lab(lab)) == lab
    assert parse_lab(write_commented_lab(lab)) == lab
    assert hash(lab.queue)
    assert parse_lab("name: plain").queue == Discipline()
    assert "queue" not in write_lab(parse_lab("name: plain"))


def test_how_often_a_controller_polls_is_read_and_written_again() -> None:
    lab = parse_lab("name: lab\ncontroller: {poll: 10s}")
    assert lab.controller_poll_s == 10
    assert parse_lab(write_lab(lab)) == lab
    assert parse_lab("name: lab").controller_poll_s == 1
    with pytest.raises(LabFileError, match="'2min' is out of bounds"):
        parse_lab("name: lab\ncontroller: {poll: 2min}")


def test_a_queue_is_within_bounds_wherever_it_is_from() -> None:
    with pytest.raises(
        BadInput, match="half_life_s cannot be nan s: expected at least 1 and"
    ):
        Discipline(half_life_s=float("nan"))
    with pytest.raises(
        BadInput, match="share cannot be 0: expected more than 0 and at most"
    ):
        Allowance(share=0)
    with pytest.raises(BadInput, match="user ann appears twice"):
        Discipline(users=(("ann", Allowance()), ("ann", Allowance())))


def test_who_decides_is_read_and_written_again() -> None:
    text = """\
name: follows
policies:
  placement: cheapest
  order: las:queues=3
  deadline: 500ms
  defragment: true
  defragment_every: 2min
  minimum_gain: 0s
"""
    lab = parse_lab(text)
    assert lab.policies.said == {
        "placement": "cheapest",
        "order": "las:queues=3",
        "deadline_s": 0.5,
        "defragment": True,
        "defragment_every_s": 120,
        "minimum_gain_s": 0,
    }
    assert parse_lab(write_lab(lab)) == lab
    assert parse_lab(write_commented_lab(lab)) == lab
    assert (
        parse_lab(
            "name: plain\npolicies: {defragment: false}"
        ).policies.defragment
        is False
    )
    assert "policies" not in write_lab(parse_lab("name: plain"))


def test_every_kind_of_policy_has_a_key() -> None:
    for kind in KINDS:
        assert (
            parse_lab(f"name: x\npolicies: {{{kind}: fifo}}").policies.of(kind)
            == "fifo"
        )


def test_policy_files_are_looked_for_beside_the_lab_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(
        "name: mine\npolicies: {placement: 'my/own.py:Roomy:a=1', order: srpt}\n"
    )
    lab = read_lab(path)
    assert lab.policies.placement == f"{tmp_path}/my/own.py:Roomy:a=1"
    assert lab.policies.order == "srpt"
    assert parse_lab(write_lab(lab)) == lab


def test_a_lab_may_be_one_switch_alone() -> None:
    lab = parse_lab(LONE_SWITCH)
    assert [switch.name for switch in lab.circuit_switches] == ["ocs1"]
    assert lab.hosts == ()
    assert parse_lab(write_lab(lab)) == lab


GOOD = """\
name: small
circuit_switches:
  - name: ocs1
    driver: calient-tl1
    address: 10.0.0.5:3082
    ports: 16
    emulated:
      users: [{name: viewer, password_env: VIEWER_PW, read_only: true}, {name: second}]
      conflict_time: 500ms
      faults:
        - {refuse_next: "busy: #1", after_changes: 2}
        - {drift_db: {3: 1.5, 4: -2}, after: 30s}
        - {refuse_ports: [1, 2], stall_s: 2, acknowledge: true}
        - {lose: "1>7"}
  - {name: ocs2, driver: openflow, address: "10.0.0.6:6654", ports: 16, datapath_id: 0x51}
"""

# Below each message: what stands there, and what stands there instead; ‸ is where the mistake is.
MISTAKES = mistakes("""
unknown key 'loose' in a fault: did you mean 'lose'?
    {lose: ⇒ {‸loose:
a fault needs a kind: expected one of
    - {lose: "1>7"} ⇒ - ‸{after: 3s}
expected a fault, found the text 'lose'
    - {lose: "1>7"} ⇒ - ‸lose
port 17 is outside the switch: expected 1 to 16
    "1>7" ⇒ ‸"1>17"
'1' is not a cross-connect
    "1>7" ⇒ ‸"1"
port 20 is outside the switch: expected 1 to 16
    [1, 2] ⇒ [1, ‸20]
expected a port number, a whole number from 1
    [1, 2] ⇒ [1, ‸0]
port 30 is outside the switch
    {3: 1.5 ⇒ {‸30: 1.5
expected a port number, found the text 'x'
    {3: 1.5 ⇒ {‸x: 1.5
expected dB, a number, found the text 'a lot'
    {3: 1.5 ⇒ {3: ‸a lot
expected seconds, a number from 0 on, found the number -2
    stall_s: 2 ⇒ stall_s: ‸-2
true or false, found the number 1
    acknowledge: true ⇒ acknowledge: ‸1
'later' is not a time of the cut
    acknowledge: true ⇒ cut: ‸later
'on' is not a place of power monitors
    acknowledge: true ⇒ monitors: ‸on
'now' is not an effect on the map
    acknowledge: true ⇒ reboot: ‸now
expected a time with its unit
    after: 30s ⇒ after: ‸30
not both
    after: 30s ⇒ after: 30s, after_changes: ‸1
expected a number, a whole number from 1
    after_changes: 2 ⇒ after_changes: ‸0
user viewer, first on line 8
    {name: second} ⇒ {name: ‸viewer}
a user lacks 'name'
    {name: second} ⇒ ‸{read_only: true}
true or false, found the text 'yes'
    read_only: true} ⇒ read_only: ‸yes}
has no datapath id
    driver: calient-tl1 ⇒ driver: calient-tl1⏎    datapath_id: ‸7
needs 'datapath_id'
    driver: openflow ⇒ driver: ‸openflow
expected an OpenFlow datapath id
    0x51} ⇒ ‸0}
""")


def test_what_is_declared_is_read_and_written_again() -> None:
    lab = parse_lab(GOOD)
    first, second = lab.circuit_switches
    assert second.datapath_id == 0x51
    assert not second.emulated
    assert first.emulated == Emulation(
        faults=(
            OcsFault.of({"refuse_next": "busy: #1"}, after_changes=2),
            OcsFault.of({"drift_db": {"3": 1.5, "4": -2.0}}, after_s=30.0),
            OcsFault.of(
                {"refuse_ports": [1, 2], "stall_s": 2.0, "acknowledge": True}
            ),
            OcsFault.of({"lose": "1>7"}),
        ),
        users=(
            OcsUser("viewer", "VIEWER_PW", read_only=True),
            OcsUser("second"),
        ),
        conflict_time_s=0.5,
    )
    assert first.emulated.faults[1].control == {
        "drift_db": {"3": 1.5, "4": -2.0}
    }
    assert parse_lab(write_lab(lab)) == lab


@pytest.mark.parametrize(
    ("written", "datapath_id"),
    [
        ("2", 2),
        ("0x2", 2),
        ("'0x2'", 2),
        ("00:00:00:00:00:00:00:02", 2),
        ("0000000000000002", 2),
        ("0000D8C497A1B2c3", 0xD8C497A1B2C3),
        ("1234567890123456", 1234567890123456),
    ],
)
def test_a_datapath_id_may_be_as_the_switch_prints_it(
    written: str, datapath_id: int
) -> None:
    lab = parse_lab(
        SMALL_LAB.replace("datapath_id: 2,", f"datapath_id: {written},")
    )
    assert lab.packet_switches[1].datapath_id == datapath_id
    assert parse_lab(write_lab(lab)) == lab


@pytest.mark.parametrize(("good", "bad", "message"), MISTAKES)
def test_every_mistake_has_its_line_and_column(
    good: str, bad: str, message: str
) -> None:
    assert good in GOOD
    text = GOOD.replace(good, bad)
    if "needs 'datapath_id'" in message:
        text = text.replace(", datapath_id: 0x51", "")
    text, line, column = unmarked(text)
    with pytest.raises(LabFileError) as caught:
        parse_lab(text)
    issues = [
        issue for issue in caught.value.issues if message in issue.message
    ]
    assert [(issue.line, issue.column) for issue in issues] == [
        (line, column)
    ], str(caught.value)


@pytest.mark.parametrize("driver", ["polatis-scpi", "openflow"])
def test_what_a_driver_s_device_cannot_do_is_a_mistake(driver: str) -> None:
    text = GOOD.replace("driver: calient-tl1", f"driver: {driver}")
    with pytest.raises(BadInput) as caught:
        parse_lab(text)
    assert f"a {driver} has no logins" in caught.value.message
    assert f"an emulated {driver} has no conflict_time" in caught.value.message
