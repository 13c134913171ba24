"""A command for one lab reaches that lab's controller, or none."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.client.client import (
    ControllerClient,
    ControllerError,
    OtherLab,
)
from patchlight.controller.parts import ControllerSettings
from patchlight.emulation.fabric.lab_state import MARK
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.labfile.reader import builtin_lab, read_lab
from patchlight.testbed.wire.lab_api import LabIdentity, api_address
from tests.support.controller_process import (
    ControllerProcess,
    OcsCommand,
    controller_process,
)
from tests.support.waiting import PATIENCE_S, free_ports, wait_until

pytestmark = pytest.mark.xdist_group("the controller of lab_a")


@pytest.fixture(scope="module")
def lab_a(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ControllerProcess]:
    """The controller of the lab ``dry``."""
    with controller_process(tmp_path_factory.mktemp("a")) as process:
        yield process


def other_file(
    lab_a: ControllerProcess, folder: Path, old: str, new: str
) -> Path:
    """The lab file of ``lab_a``, its controller's address too, with something else in it."""
    text = lab_a.lab.read_text()
    assert old in text
    path = folder / "other.yaml"
    path.write_text(text.replace(old, new))
    return path


def test_a_command_for_one_lab_never_changes_another(
    lab_a: ControllerProcess, tmp_path: Path
) -> None:
    lab_b = other_file(lab_a, tmp_path, "name: dry", "name: wet")
    ocs = OcsCommand(("--lab", str(lab_b)))
    before = lab_a.client.circuits()
    changes = len(lab_a.client.reconfigurations())
    for words in (
        ("connect", "o1", "a.n0:t1.2", "--yes"),
        ("disconnect", "o1", "1", "--yes"),
        ("lock", "o1.5", "--why", "x"),
        ("stop",),
        ("save", "monday"),
        ("history",),
        ("show",),
    ):
        said = ocs(*words, code=1)
        assert f"has the lab dry ({lab_a.lab}), not wet ({lab_b})" in said, (
            words
        )
    assert lab_a.client.circuits() == before
    assert len(lab_a.client.reconfigurations()) == changes
    assert lab_a.client.locks() == []
    assert lab_a.client.stop_button() is None
    for command in (["job", "list"], ["status"]):
        result = CliRunner().invoke(cli, [*command, "--lab", str(lab_b)])
        assert isinstance(result.exception, OtherLab), command


def test_direct_is_not_led_to_the_controller_of_another_lab(
    lab_a: ControllerProcess, tmp_path: Path
) -> None:
    lab_b = other_file(lab_a, tmp_path, "name: dry", "name: wet")
    direct = ("--direct", "--state", str(tmp_path / "state"))
    assert "1>3" in OcsCommand(("--lab", str(lab_b), *direct))(
        "show", "o1", "--json"
    )
    said = OcsCommand(("--lab", str(lab_a.lab), *direct))("show", "o1", code=1)
    assert "the controller of lab dry at" in said


def test_a_file_that_was_edited_since_is_good_for_looking_and_stopping_alone(
    lab_a: ControllerProcess, tmp_path: Path
) -> None:
    edited = other_file(lab_a, tmp_path, "[a.n0, o1.1]", "[a.n0, o1.9]")
    ocs = OcsCommand(("--lab", str(edited)))
    for words in (
        ("connect", "o1", "a.n0:t1.2", "--yes"),
        ("lock", "o1.5", "--why", "x"),
    ):
        said = ocs(*words, code=1)
        assert "another version of lab dry" in said
        assert str(lab_a.lab) in said
        assert str(edited) in said
    ocs("history")
    ocs("stop", "--why", "smoke")
    assert lab_a.client.stop_button()
    ocs("stop", "--clear")
    assert lab_a.client.circuits()["o1"].map == ["1>3", "2>5", "3>1", "5>2"]


def test_with_an_address_alone_names_are_those_of_the_controllers_lab(
    lab_a: ControllerProcess,
) -> None:
    said = OcsCommand(("--controller", lab_a.api))(
        "connect", "o1", "a.n0:t1.2", "--dry-run"
    )
    assert "o1 + 1>4" in said


def test_what_does_not_matter_to_names_does_not_make_a_file_another(
    tmp_path: Path,
) -> None:
    process = ControllerProcess(tmp_path)
    identity = LabIdentity.of(read_lab(process.lab), process.lab)
    text = process.lab.read_text()
    for old, new, same in (
        ("{ends: [a.n0, o1.1]}", "{ends: [o1.1, a.n0], loss: 0.4dB}", True),
        ("controller:", "scale: 10\ncontroller:", True),
        ("[a.n0, o1.1]", "[a.n0, o1.12]", False),
        ("127.0.0.1:1", "127.0.0.1:2", False),
        ("datapath_id: 0x11", "datapath_id: 0x13", False),
        ("10.9.0.2", "10.9.0.3", False),
    ):
        assert old in text
        process.lab.write_text(text.replace(old, new))
        other = LabIdentity.of(read_lab(process.lab), process.lab)
        assert (other.fingerprint == identity.fingerprint) == same, new


@contextlib.contextmanager
def controller_of(
    lab: Path, state: Path, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        sys.executable,
        "-m",
        "patchlight",
        "controller",
        "run",
        "--lab",
        str(lab),
    ]
    command += [
        "--state",
        str(state),
        "--openflow",
        f"127.0.0.1:{free_ports(1)[0]}",
        *options,
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def without_address(folder: Path, name: str) -> Path:
    """A lab file of this name, which no other run of these tests has: its address is made of it."""
    name = f"{name}-{os.getpid()}"
    text = ControllerProcess(folder).lab.read_text()
    lines = [
        line
        for line in text.splitlines()
        if not line.startswith("controller:")
    ]
    path = folder / f"{name}.yaml"
    path.write_text("\n".join(lines).replace("name: dry", f"name: {name}"))
    return path


def answers(lab: Path) -> bool:
    with (
        contextlib.suppress(ControllerError),
        ControllerClient(api_address(read_lab(lab))) as c,
    ):
        return bool(c.status())
    return False


def test_each_lab_has_an_address_of_its_own(tmp_path: Path) -> None:
    one, two = (without_address(tmp_path, f"door{n}") for n in (1, 2))
    ocs = {lab: OcsCommand(("--lab", str(lab))) for lab in (one, two)}
    with (
        controller_of(one, tmp_path / "one"),
        controller_of(two, tmp_path / "two"),
    ):
        addresses = set()
        for lab in (one, two):
            wait_until(partial(answers, lab))
            addresses.add(api_address(read_lab(lab)))
        assert len(addresses) == 2
        ocs[one]("connect", "o1", "7-8", "--yes")
        assert '"7>8"' in ocs[one]("show", "o1", "--json")
        assert '"7>8"' not in ocs[two]("show", "o1", "--json")
        with ControllerClient(
            api_address(read_lab(one)), user="somebody"
        ) as client:
            assert client.reconfigurations()[-1].origin.startswith(
                "unix (uid "
            )
    for address in addresses:
        assert not Path(address.removeprefix("unix:")).exists()
    assert "no answer from a controller at unix:" in ocs[one]("show", code=1)


@pytest.mark.parametrize(
    "address",
    ["0.0.0.0:0", "[::]:0", "192.0.2.1:8470", "[::ffff:127.0.0.1]:1"],
)
def test_the_api_listens_on_this_machine_alone(
    tmp_path: Path, address: str
) -> None:
    lab = without_address(tmp_path, "door3")
    words = [
        "controller",
        "run",
        "--lab",
        str(lab),
        "--state",
        str(tmp_path / "state"),
    ]
    refused = CliRunner().invoke(cli, [*words, "--api", address]).exception
    assert isinstance(refused, BadInput)
    assert refused.message.startswith("the API cannot listen at")
    assert "without TLS" in refused.message
    assert "--tls" in str(refused.hint)
    assert not (tmp_path / "state").exists()


def test_a_controller_beside_one_of_the_same_lab_is_refused(
    tmp_path: Path,
) -> None:
    lab = without_address(tmp_path, "door4")
    with controller_of(lab, tmp_path / "one"):
        wait_until(partial(answers, lab))
        with controller_of(lab, tmp_path / "two") as second:
            assert second.wait(PATIENCE_S) == 1
            assert second.stderr is not None
            said = second.stderr.read().decode()
            assert "another controller already serves" in said
            assert said.startswith("patchlight: ")
        assert not (tmp_path / "two").exists()
        assert answers(lab)


def test_a_controller_says_where_it_listens_once_it_does(
    lab_a: ControllerProcess,
) -> None:
    wait_until(
        lambda: (
            f"controller of dry: API on {lab_a.api}" in lab_a.log.read_text()
        )
    )


def test_arguments_in_another_character_set_are_no_crash(
    lab_a: ControllerProcess,
) -> None:
    ocs = OcsCommand(("--lab", str(lab_a.lab)))
    assert "not valid UTF-8" in ocs(
        "connect", "o1", "7-8", "--yes", "--why", "caf\udce9", code=2
    )
    for name in ("a/b", "..", ""):
        assert "invalid name for saved maps" in ocs("save", name, code=2)


def test_another_service_at_the_address_is_said(
    lab_a: ControllerProcess, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        lab = other_file(lab_a, tmp_path, lab_a.api, address)
        with pytest.raises(PatchlightError, match="no answer"):
            ControllerClient(address, deadline_s=0.5).status()
        identity = LabIdentity.of(read_lab(lab), lab)
        with (
            pytest.raises(ControllerError),
            ControllerClient(address, 0.5, lab=identity) as client,
        ):
            client.press_stop()
    with pytest.raises(BadInput):
        CliRunner().invoke(
            cli, ["ocs", "show", "--lab", "nowhere"], catch_exceptions=False
        )


def test_the_next_controller_of_an_emulated_lab_goes_on_with_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = tmp_path / "ofc2022"
    up.mkdir()
    (up / "lab.yaml").write_text(builtin_lab("ofc2022").read_text())
    monkeypatch.setattr("patchlight.console.connection.RUN_ROOT", tmp_path)
    monkeypatch.setenv(MARK, str(up))
    served: list[ControllerSettings] = []
    monkeypatch.setattr(
        "patchlight.controller.service.serve",
        lambda _lab, settings, _ready: served.append(settings),
    )
    for lab in ("ofc2022", str(up / "lab.yaml")):
        result = CliRunner().invoke(cli, ["controller", "run", "--lab", lab])
        assert result.exit_code == 0, result.output
    for settings in served:
        assert settings.lab_file == up / "lab.yaml"
        assert settings.state_dir == up / "controller"
        assert str(settings.openflow_netns).endswith("pl.ofc2022.fabric")
    CliRunner().invoke(
        cli, ["controller", "run", "--lab", str(builtin_lab("ofc2022"))]
    )
    assert served[-1].openflow_netns is None


@pytest.mark.parametrize(
    "written", ["127.0.0.1:7", "http://127.0.0.1:7", "http://127.0.0.1:7/"]
)
def test_a_controller_is_named_by_its_address_or_as_emulate_status_prints_it(
    written: str,
) -> None:
    result = CliRunner().invoke(cli, ["status", "--controller", written])
    assert isinstance(result.exception, ControllerError)
    assert "127.0.0.1:7" in str(result.exception)
    assert "http://http" not in str(result.exception)
