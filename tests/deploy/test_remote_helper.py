"""What runs on a server while somebody deploys to it, here below a folder."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest

from patchlight.deploy.units import Run
from patchlight.deploy.wheels import wheel_of
from patchlight.testbed.linux.processes import command_line, process_ids
from tests.support.remote_helpers import (
    HelperProcess,
    remote_helper,
    sha256_of,
    small_wheel,
)
from tests.support.waiting import wait_until


@pytest.fixture
def far(tmp_path: Path) -> Iterator[HelperProcess]:
    with remote_helper(tmp_path / "root") as far:
        yield far
        far.ask("remove")


def installed(far: HelperProcess, folder: Path, version: str) -> str:
    """Have a release of that version of the small package installed; what it is called."""
    folder.mkdir(exist_ok=True)
    release = far.release(folder, f"r{version}", small_wheel(folder, version))
    assert far.ask("install", **release)
    assert far.ask("has_layer", layer=release["layer"])
    assert not far.ask("install", **release)
    return f"r{version}"


def served(
    far: HelperProcess, tmp_path: Path, release: str, seconds: float = 1000
) -> bool:
    program = tmp_path / "root/opt/patchlight/lab/current/bin/tiny"
    run = Run("lab", "agent", [str(program), str(seconds)])
    services = {"agent": (run.unit, run.script)}
    return bool(
        far.ask("serve", release=release, services=services, again=False)
    )


def test_it_says_what_the_server_is(far: HelperProcess) -> None:
    assert far.hello.keys() == {"python", "machine", "glibc", "systemd"}
    found = far.ask("look")
    assert (found["release"], found["files"], found["here"]) == (
        None,
        [],
        False,
    )


def test_a_file_that_was_cut_goes_on_where_it_was(tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    sha256 = sha256_of(content)
    with remote_helper(tmp_path) as far:
        fields = f'{{"do": "put", "sha256": "{sha256}", "size": {len(content)}, "offset": 0}}\n'
        far.write(fields.encode() + content[:1_000_000])
        far.cut()
    with remote_helper(tmp_path) as far:
        assert far.ask("look")["partial"] == {sha256: 1_000_000}
        assert far.put(content, 1_000_000) == {"answer": None}
        found = far.ask("look")
        assert (found["files"], found["partial"]) == ([sha256], {})
    assert (
        tmp_path / "opt/patchlight/lab/files" / sha256
    ).read_bytes() == content


def test_a_damaged_file_is_not_kept(far: HelperProcess) -> None:
    told = far.put(b"other", sha256=sha256_of(b"content"))
    assert (told["error"], far.ask("look")["partial"]) == (
        "a file arrived damaged",
        {},
    )


def test_only_one_deploys_at_a_time(tmp_path: Path) -> None:
    with (
        remote_helper(tmp_path) as one,
        remote_helper(tmp_path) as two,
        remote_helper(tmp_path, "other") as other,
    ):
        one.ask("lock", who="Ada on desk")
        told = two.tell("lock", who="Bob on laptop")
        assert told["error"].startswith("Ada on desk, since ")
        assert told["error"].endswith("is deploying to lab lab here")
        other.ask("lock", who="Bob on laptop")
        one.cut()
        two.ask("lock", who="Bob on laptop")
    assert list((tmp_path / "run").iterdir()) == []


def test_an_installation_that_was_cut_short_is_made_anew(
    tmp_path: Path,
) -> None:
    half = tmp_path / "root/opt/patchlight/lab/releases/r1/bin"
    half.mkdir(parents=True)
    with remote_helper(tmp_path / "root") as far:
        installed(far, tmp_path / "wheels", "1")
    assert (half / "tiny").exists()


def test_what_cannot_be_installed_is_said(
    far: HelperProcess, tmp_path: Path
) -> None:
    (no_wheel := tmp_path / "tiny-1-py3-none-any.whl").write_bytes(b"no wheel")
    told = far.tell("install", **far.release(tmp_path, "r1", no_wheel))
    assert "python failed: " in told["error"]
    assert "zip" in told["error"]


def test_a_release_runs_until_it_is_stopped(
    far: HelperProcess, tmp_path: Path
) -> None:
    release = installed(far, tmp_path / "wheels", "1")
    assert served(far, tmp_path, release)
    wait_until(lambda: far.ask("state", role="agent")["running"], "it runs")
    since = far.ask("state", role="agent")["since"]
    assert not served(far, tmp_path, release)
    assert far.ask("state", role="agent")["since"] == since
    log = tmp_path / "root/var/log/patchlight/lab/agent.log"
    wait_until(lambda: "tiny 1" in log.read_text(), "it has written")
    far.ask("act", action="stop", roles=["agent"])
    assert not far.ask("state", role="agent")["running"]
    assert not running(tmp_path)


def test_services_start_again_after_a_deployment_that_was_cut_off_before(
    tmp_path: Path,
) -> None:
    files = {"lab.yaml": ("new", 0o644)}

    def runs(far: HelperProcess) -> None:
        wait_until(
            lambda: far.ask("state", role="agent")["running"], "it runs"
        )

    with remote_helper(tmp_path / "root") as far:
        release = installed(far, tmp_path / "wheels", "1")
        assert far.ask("configure", files=files)
        assert served(far, tmp_path, release)
        runs(far)
        assert not far.ask("configure", files=files)
        assert not served(far, tmp_path, release)
        files["lab.yaml"] = ("newer", 0o644)
        assert far.ask("configure", files=files)
        far.cut()
    with remote_helper(tmp_path / "root") as far:
        try:
            assert not far.ask("configure", files=files)
            assert served(far, tmp_path, release)
            runs(far)
            assert not served(far, tmp_path, release)
        finally:
            far.ask("remove")


def running(tmp_path: Path) -> list[int]:
    """The processes below the folder, of the service and of the shell that keeps it."""
    ours = [
        pid
        for pid in process_ids()
        if str(tmp_path / "root/opt") in command_line(pid)
    ]
    return [pid for pid in ours if "remote_helper" not in command_line(pid)]


def power_is_off(tmp_path: Path) -> bool:
    """End all that runs there now, which may be starting more; whether there was nothing."""
    pids = running(tmp_path)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return not pids


def test_one_that_ends_is_started_again(
    far: HelperProcess, tmp_path: Path
) -> None:
    served(far, tmp_path, installed(far, tmp_path / "wheels", "1"))
    log = tmp_path / "root/var/log/patchlight/lab/agent.log"
    wait_until(lambda: log.exists() and "tiny 1" in log.read_text(), "it runs")
    (program,) = [
        pid
        for pid in running(tmp_path)
        if "keep-agent" not in command_line(pid)
    ]
    os.kill(program, signal.SIGKILL)
    wait_until(
        lambda: far.ask("state", role="agent")["restarts"] == 1,
        "it is started again",
    )
    wait_until(
        lambda: far.ask("state", role="agent")["running"], "it runs again"
    )


@pytest.mark.skipif(
    not shutil.which("update-rc.d"), reason="no update-rc.d: not a Debian"
)
def test_it_begins_with_the_server_where_scripts_begin_programs(
    far: HelperProcess, tmp_path: Path
) -> None:
    entries = tmp_path / "root/etc"
    for folder in ("init.d", "rc2.d"):
        (entries / folder).mkdir(parents=True)
    served(far, tmp_path, installed(far, tmp_path / "wheels", "1"))
    (entry,) = (entries / "rc2.d").glob("S*patchlight-agent-lab")
    wait_until(lambda: power_is_off(tmp_path), "all of it has ended")
    wait_until(
        lambda: not far.ask("state", role="agent")["running"], "it has ended"
    )
    subprocess.run([entry, "start"], check=True)
    wait_until(
        lambda: far.ask("state", role="agent")["running"], "it runs again"
    )
    assert not served(far, tmp_path, "r1")
    far.ask("remove")
    assert not [
        path for path in entries.rglob("*") if "patchlight" in path.name
    ]


def test_back_to_the_release_before_and_forth(
    far: HelperProcess, tmp_path: Path
) -> None:
    first = installed(far, tmp_path / "wheels", "1")
    served(far, tmp_path, first)
    assert far.tell("roll_back")["error"] == (
        "there is no earlier release to return to"
    )
    for version in ("2", "3"):
        assert served(
            far, tmp_path, installed(far, tmp_path / "wheels", version)
        )
    found = far.ask("look")
    assert (found["release"]["id"], found["previous"]["id"]) == ("r3", "r2")
    assert found["release"]["by"] == "me"
    # Those two are all that there is, and what they were made of.
    assert {
        p.name
        for p in (tmp_path / "root/opt/patchlight/lab/releases").iterdir()
    } == {
        "r2",
        "r3",
    }
    assert len(found["files"]) == 3
    assert far.ask("roll_back")["id"] == "r2"
    log = tmp_path / "root/var/log/patchlight/lab/agent.log"
    wait_until(lambda: log.read_text().split()[-1:] == ["2"], "release 2 runs")
    assert far.ask("roll_back")["id"] == "r3"


def test_configuration_is_what_was_said_last(
    far: HelperProcess, tmp_path: Path
) -> None:
    folder = tmp_path / "root/opt/patchlight/lab/configuration"
    files = {
        "lab.yaml": ("name: lab\n", 0o644),
        "tls/key.pem": ("secret", 0o600),
    }
    assert far.ask("configure", files=files)
    assert not far.ask("configure", files=files)
    assert (folder / "tls/key.pem").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert far.ask("configure", files={"lab.yaml": ("name: lab\n", 0o644)})
    assert far.ask("look")["configuration"] == ["lab.yaml"]


def test_nothing_is_left_of_what_is_removed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "opt").mkdir(parents=True)
    with remote_helper(root) as far, remote_helper(root, "other") as other:
        for each in (far, other):
            each.ask("lock", who="me")
            each.ask("configure", files={"lab.yaml": ("", 0o644)})
        served(far, tmp_path, installed(far, tmp_path / "wheels", "1"))
        wait_until(lambda: running(tmp_path), "it runs")
        far.ask("remove")
        assert not running(tmp_path)
        # Another lab on the same server stays.
        assert [p.name for p in (root / "opt/patchlight").iterdir()] == [
            "other"
        ]
        other.ask("remove")
    assert list((root / "opt").iterdir()) == []
    assert [path for path in root.rglob("*") if path.is_file()] == []


def layered(tmp_path: Path) -> Path:
    """The folder of the layers of the lab."""
    return tmp_path / "root/opt/patchlight/lab/layers"


def test_releases_share_what_they_require(
    far: HelperProcess, tmp_path: Path
) -> None:
    served(far, tmp_path, installed(far, tmp_path / "wheels", "1"))
    served(far, tmp_path, second := installed(far, tmp_path / "wheels", "2"))
    (layer,) = layered(tmp_path).iterdir()
    assert {path.name for path in layer.iterdir()} >= {
        "installer",
        "layer.json",
    }
    releases = tmp_path / "root/opt/patchlight/lab/releases"
    assert not [*releases.glob("*/lib/python*/site-packages/installer")]
    program = "import installer; print(installer.__file__)"
    said = subprocess.check_output(
        [releases / second / "bin/python", "-Ic", program], text=True
    )
    assert said.startswith(str(releases / second / "layer"))
    # A release that requires something else brings another, and the last that used the first goes.
    more = wheel_of(distribution("click"), tmp_path / "cache")
    wheel = small_wheel(tmp_path / "wheels", "3")
    far.ask("install", **far.release(tmp_path / "wheels", "r3", wheel, more))
    served(far, tmp_path, "r3")
    assert len([*layered(tmp_path).iterdir()]) == 2
    wheel = small_wheel(tmp_path / "wheels", "4")
    far.ask("install", **far.release(tmp_path / "wheels", "r4", wheel, more))
    served(far, tmp_path, "r4")
    assert [path.name for path in layered(tmp_path).iterdir()] != [layer.name]
    assert len([*layered(tmp_path).iterdir()]) == 1


@pytest.mark.parametrize("how", ["lost", "short"])
def test_a_damaged_layer_is_not_used_and_is_made_again(
    tmp_path: Path, how: str
) -> None:
    with remote_helper(tmp_path / "root") as far:
        served(far, tmp_path, installed(far, tmp_path / "wheels", "1"))
        served(far, tmp_path, installed(far, tmp_path / "wheels", "2"))
    (layer,) = layered(tmp_path).iterdir()
    damaged = layer / "installer/sources.py"
    if how == "lost":
        damaged.unlink()
    else:
        os.truncate(damaged, 10)
    with remote_helper(tmp_path / "root") as far:
        try:
            assert not far.ask("has_layer", layer=layer.name)
            assert "r1 requires are damaged" in far.tell("roll_back")["error"]
            assert far.ask("look")["release"]["id"] == "r2"
            wheel = small_wheel(tmp_path / "wheels", "2")
            release = far.release(tmp_path / "wheels", "r2", wheel)
            assert far.ask("install", **release)
            assert not far.ask("install", **release)
            assert far.ask("roll_back")["id"] == "r1"
        finally:
            far.ask("remove")
    assert (
        damaged.stat().st_size > 10
        if damaged.exists()
        else not layered(tmp_path).exists()
    )


def test_a_layer_that_was_cut_short_is_not_used(tmp_path: Path) -> None:
    half = layered(tmp_path) / ".l1.part/installer"
    half.mkdir(parents=True)
    with remote_helper(tmp_path / "root") as far:
        assert not far.ask("has_layer", layer="l1")
        served(far, tmp_path, installed(far, tmp_path / "wheels", "1"))
        assert not half.exists()  # pruned
        far.ask("remove")


def test_a_layer_of_the_servers_image_is_used_and_left_alone(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    image = tmp_path / "root/usr/lib/patchlight"
    with remote_helper(tmp_path / "root") as far:
        release = far.release(folder, "r1", small_wheel(folder, "1"))
        far.ask("install", **release)
        image.parent.mkdir(parents=True)
        layered(tmp_path).rename(image)
        far.ask("remove")
    before = sorted(image.rglob("*"))
    with remote_helper(tmp_path / "root") as far:
        assert far.ask("has_layer", layer=release["layer"])
        far.put(small_wheel(folder, "1").read_bytes())
        far.ask("install", **release)
        assert served(far, tmp_path, "r1")
        wait_until(
            lambda: far.ask("state", role="agent")["running"], "it runs"
        )
        assert not layered(tmp_path).exists()
        far.ask("remove")
    assert sorted(image.rglob("*")) == before
