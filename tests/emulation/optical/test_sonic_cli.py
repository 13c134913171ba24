"""The command line of the emulated SONiC OCS by hand: tables and words as SONiC's own have them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import pytest

from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.testbed.lab.portmap import PortMap
from tests.support.ssh_clients import logged_in, until
from tests.support.waiting import PATIENCE_S

Shell = Callable[[str], tuple[int, str, str]]

# From the design of SONiC's OCS, section 9.2.
CONFIG = """\
id       a_side    b_side
-------  --------  --------
1A-1B    1A        1B
2A-5B    2A        5B
12A-32B  12A       32B
"""
STATUS = """\
id       a_side    b_side    a_side_status    b_side_status
-------  --------  --------  ---------------  ---------------
1A-1B    1A        1B        tuned            tuned
2A-5B    2A        5B        tuned            tuned
12A-32B  12A       32B       tuned            tuned
"""
PORT_CONFIG = """\
id    label     state
----  --------  -------------
1A    Label_1A  force_blocked
1B              normal
2A              normal
"""
PORT_STATUS = """\
id    connector_type    connector_pin    target_simplex_port_id    status
----  ----------------  ---------------  ------------------------  --------
1A    LC UPC            2                1B                        blocked
1B    LC UPC            1                1A                        blocked
2A    LC UPC            2                5B                        tuned
2B    LC UPC            1                                          blocked
"""
MAPPING = """
Faceplate Port #   Engine Port #   Faceplate Port #   Engine Port #   Faceplate Port #   Engine Port #   Faceplate Port #   Engine Port #
64x64 Port #       84x84 Port #    64x64 Port #       84x84 Port #    64x64 Port #       84x84 Port #    64x64 Port #       84x84 Port #
-----------------  --------------  -----------------  --------------  -----------------  --------------  -----------------  --------------
1A                 A-1             33A                A-33            1B                 B-1             33B                B-33
"""  # noqa: E501
LOSSES = """\
id         frequency_THz    temperature_C    loss_dB    accuracy_dB
-------  ---------------  ---------------  ---------  -------------
"""
EMPTY = """\
id    a_side    b_side
----  --------  --------
"""
# From the guide to the virtual machine.
GENERATED = {
    "show ocs-cross-connect": """\
CROSS CONNECT ID    A SIDE    B SIDE
------------------  --------  --------
1A-16B              1A        16B
8A-9B               8A        9B
""",
    "show ocs-cross-connect-table": """\
CROSS CONNECT ID    STATUS    PHYSICAL PATH
------------------  --------  --------------------------------
1A-16B              enabled   1A, panel IN 1, panel OUT 16, 16
8A-9B               enabled   8A, panel IN 8, panel OUT 9, 9B
""",
}
GENERATED_PORTS = """\
SIMPLEX PORT ID    CONNECTOR TYPE      CONNECTOR PIN  TARGET SIMPLEX PORT ID    OPER STATUS
-----------------  ----------------  ---------------  ------------------------  -------------
1A                 Duplex LC                       0  16B                       connected
1B                 Duplex LC                       0                            blocked
"""


@pytest.fixture
def there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[paramiko.Transport, EmulatedOcs]]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with logged_in("sonic-ocs-ssh", 64) as found:
        yield found


@pytest.fixture
def device(
    there: tuple[paramiko.Transport, EmulatedOcs],
) -> EmulatedOcs:
    return there[1]


@pytest.fixture
def run(there: tuple[paramiko.Transport, EmulatedOcs]) -> Shell:
    """Exit status, output and errors of a command."""

    def run(command: str) -> tuple[int, str, str]:
        channel = there[0].open_session()
        channel.settimeout(PATIENCE_S)
        channel.exec_command(command)
        output = channel.makefile("rb").read().decode()
        errors = channel.makefile_stderr("rb").read().decode()
        return channel.recv_exit_status(), output, errors

    return run


@pytest.fixture
def config(run: Shell) -> Callable[[str], str]:
    """What ``sudo config`` prints, and whether it is done."""

    def config(command: str) -> str:
        status, output, errors = run(f"sudo config {command}")
        assert not errors
        assert (status == 0) != output.startswith("Error: ")
        return output

    return config


def shown(run: Shell, what: str) -> str:
    status, output, errors = run(f"show {what}")
    assert (status, errors) == (0, "")
    return output


def ids(run: Shell, what: str = "config") -> list[str]:
    lines = shown(run, f"ocs cross-connect {what}").splitlines()[2:]
    return [line.split()[0] for line in lines]


def test_its_tables_are_those_of_the_design(
    run: Shell, config: Callable[[str], str]
) -> None:
    config("ocs cross-connect delete 1A-7B")
    assert shown(run, "ocs cross-connect config") == EMPTY
    config("ocs cross-connect add 1A-1B,2A-5B,12A-32B")
    assert shown(run, "ocs cross-connect config") == CONFIG
    assert shown(run, "ocs cross-connect status") == STATUS
    assert config("ocs port label 1A Label_1A") == ""
    assert config("ocs port state 1A force_blocked") == ""
    ports = shown(run, "ocs port config")
    assert ports.startswith(PORT_CONFIG)
    assert ports.endswith("64B             normal\n")
    assert shown(run, "ocs port status").startswith(PORT_STATUS)
    assert "1A-1B    1A        1B        blocked          blocked\n" in shown(
        run, "ocs cross-connect status"
    )
    config("ocs port state 1A normal")
    assert shown(run, "ocs cross-connect status") == STATUS
    assert shown(run, "ocs port-mapping").startswith(MAPPING)
    losses = shown(run, "ocs factory-insertion-loss")
    assert losses.startswith(LOSSES)
    assert len(losses.splitlines()) == 2 + 64 * 64
    for line in losses.splitlines()[2:]:
        assert line[7:48].split() == ["228.85", "28"]
        assert line.endswith("            0.1")


@pytest.mark.parametrize(
    ("listed", "made"),
    [
        ("3a-7b", ["3A-7B"]),
        ("1A-7B,2A-5B", ["1A-7B", "2A-5B"]),
        ("1A..3A-11B..13B", ["1A-11B", "2A-12B", "3A-13B"]),
        ("9A-9B,1A..2A-1B..2B", ["1A-1B", "2A-2B", "9A-9B"]),
    ],
)
@pytest.mark.parametrize("mode", ["", " update", " overwrite"])
def test_cross_connects_come_alone_in_lists_and_in_ranges(
    run: Shell,
    config: Callable[[str], str],
    listed: str,
    made: list[str],
    mode: str,
) -> None:
    assert "cross-connect succeeded" in config(
        f"ocs cross-connect add {listed}{mode}"
    )
    assert ids(run) == ids(run, "status") == made
    assert "cross-connect succeeded" in config(
        f"ocs cross-connect delete {listed}"
    )
    assert ids(run) == []
    again = config(f"ocs cross-connect delete {listed}")
    assert "does not exist" in again
    assert "succeeded" not in again


def test_the_three_modes(
    run: Shell, config: Callable[[str], str], device: EmulatedOcs
) -> None:
    config("ocs cross-connect add 2A-8B")
    # The same pair again is no conflict.
    assert "succeeded" in config("ocs cross-connect add 1A-7B safe")
    for listed in ("1A-9B", "3A-7B", "3A-3B,1A-9B"):
        refused = config(f"ocs cross-connect add {listed} safe")
        assert "existing cross-connect 1A-7B" in refused
        assert ids(run) == ["1A-7B", "2A-8B"]
    config("ocs cross-connect add 1A-9B update")
    assert ids(run) == ids(run, "status") == ["1A-9B", "2A-8B"]
    config("ocs cross-connect add 4A-4B overwrite")
    assert ids(run) == ["4A-4B"]
    assert device.map == PortMap.of([(4, 4)])


@pytest.mark.parametrize(
    "listed",
    [
        "65A-66B",
        "0A-1B",
        "2A-3A",
        "2B-3B",
        "2A",
        "2A-3B-4B",
        "1A..3A-1B..2B",
        "3A..1A-3B..1B",
        "2A-3B,2A-4B",
        ",",
    ],
)
def test_what_cannot_be_changes_nothing(
    run: Shell, config: Callable[[str], str], listed: str
) -> None:
    for verb in ("add", "delete"):
        assert config(f"ocs cross-connect {verb} {listed}").startswith("Error")
        assert ids(run) == ids(run, "status") == ["1A-7B"]


def test_it_is_configured_by_root_only(run: Shell) -> None:
    status, output, errors = run("config ocs cross-connect add 2A-2B")
    assert (status, output) == (1, "")
    assert "Root privileges are required" in errors
    assert ids(run) == ["1A-7B"]
    assert (
        "safe|update|overwrite"
        in run("sudo config ocs cross-connect add 1A-1B --help")[1]
    )
    assert ids(run) == ["1A-7B"]


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        ("show ocs nonsense", 2, 'Error: No such command "nonsense"'),
        ("sudo config nonsense", 2, 'Error: No such command "nonsense"'),
        ("sudo config ocs cross-connect add 1A-1B fast", 2, "mode: 'fast'"),
        ("sudo config ocs cross-connect add", 2, "Error: wrong arguments"),
        ("sudo config ocs port state 1A off", 2, "Invalid value: 'off'"),
        ("sudo config save", 1, "Aborted!"),
        ("sudo config reload", 1, "Aborted!"),
        ("show 'ocs", 2, "No closing quotation"),
    ],
)
def test_usage_errors_are_on_the_standard_error(
    run: Shell, command: str, status: int, words: str
) -> None:
    answer = run(command)
    assert answer[:2] == (status, "")
    assert words in answer[2]


def test_other_commands(run: Shell, config: Callable[[str], str]) -> None:
    assert run("hostname") == (0, "ocs1\n", "")
    assert "HwSKU: OCS-V" in shown(run, "version")
    assert "cross-connect" in shown(run, "ocs")
    assert "status" in shown(run, "ocs cross-connect")
    assert run("bgp now")[0] == 127
    assert "config_db.json" in config("save -y")
    config("ocs cross-connect add 2A-5B")
    assert "Restarting SONiC target" in config("reload -y")
    # Each change had been saved.
    assert ids(run) == ids(run, "status") == ["1A-7B", "2A-5B"]


def test_the_generated_commands(
    run: Shell, config: Callable[[str], str]
) -> None:
    assert config("ocs-cross-connect delete 1A-7B") == ""
    for a_side, b_side in (("1A", "16B"), ("8A", "9B")):
        added = f"add {a_side}-{b_side} --a-side {a_side} --b-side {b_side}"
        assert config(f"ocs-cross-connect {added}") == ""
    for command, table in GENERATED.items():
        assert run(command) == (0, table, "")
    assert shown(run, "ocs-port-table").startswith(GENERATED_PORTS)
    assert config("ocs-port update 1A --config-status force_blocked") == ""
    assert config("ocs-port update 1B --label egress_port1") == ""
    _, _, *ports = shown(run, "ocs-port").splitlines()
    assert [line.split() for line in ports[:3]] == [
        ["1A", "force_blocked"],
        ["1B", "egress_port1", "normal"],
        ["2A", "normal"],
    ]


def test_a_shell(
    there: tuple[paramiko.Transport, EmulatedOcs],
) -> None:
    channel = there[0].open_session()
    channel.get_pty()
    channel.invoke_shell()
    prompt = "admin@ocs1:~$ "
    until(channel, prompt)
    channel.sendall(b"show ocs cross-connect config\r")
    shown = until(channel, prompt)
    assert "\r\n1A-7B  1A        7B\r\n" in shown
    channel.sendall(b"exit\r")
    while channel.recv(100):
        pass
