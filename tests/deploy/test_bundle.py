"""What servers are given is made of what is installed here, and can be carried in a file."""

import io
import json
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from patchlight.deploy.bundle import (
    BundleFile,
    FromFile,
    Part,
    Target,
    here,
    needed_by,
    oldest_c_library,
    write_bundle,
)
from patchlight.deploy.wheels import bytecode_of, needed, wheel_of
from patchlight.testbed.errors import BadInput, PatchlightError
from tests.support.remote_helpers import sha256_of

SERVER = Target("3.11", "x86_64")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_what_a_package_requires_comes_along() -> None:
    found = needed(["httpx"])
    assert {"httpx", "httpcore", "h11", "anyio", "idna"} <= set(found)
    with pytest.raises(
        PatchlightError, match="no-such-package is not installed"
    ):
        needed(["no-such-package"])


def test_an_agent_needs_less_than_a_controller() -> None:
    agent, controller = (
        set(needed(needed_by(role))) for role in ("agent", "controller")
    )
    assert agent < controller
    assert {"numpy", "uvicorn"} <= agent
    assert {"os-ken", "onnxruntime"} <= controller - agent


def test_a_wheel_is_made_again_of_what_is_installed(
    cache: Path, tmp_path: Path
) -> None:
    wheel = wheel_of(distribution("click"), cache)
    assert wheel.name.startswith("click-")
    assert wheel_of(distribution("click"), cache) == wheel
    other = wheel_of(distribution("click"), tmp_path)
    assert (other.name, other.read_bytes()) == (wheel.name, wheel.read_bytes())
    # pip compares each file with the record.
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-index",
        "--no-deps",
        "--quiet",
    ]
    subprocess.run(
        [*pip, "--target", str(tmp_path / "site"), str(wheel)], check=True
    )
    program = "import click; print(click.__file__)"
    said = subprocess.check_output(
        [
            sys.executable,
            "-Sc",
            f"import sys; sys.path[:0] = [{str(tmp_path / 'site')!r}]; {program}",
        ]
    )
    assert str(tmp_path) in said.decode()


def test_what_does_not_run_stays_here(cache: Path) -> None:
    with zipfile.ZipFile(wheel_of(distribution("numpy"), cache)) as wheel:
        names = wheel.namelist()
        record = wheel.read(
            next(name for name in names if name.endswith("/RECORD"))
        ).decode()
    assert "numpy/__init__.py" in names
    assert not [
        name
        for name in names
        if "/tests/" in name or name.endswith((".pyi", ".h"))
    ]
    assert "/tests/" not in record


def test_our_own_wheel_has_all_of_patchlight(cache: Path) -> None:
    with zipfile.ZipFile(wheel_of(distribution("patchlight"), cache)) as wheel:
        names = set(wheel.namelist())
    assert {
        "patchlight/py.typed",
        "patchlight/agents/run.py",
        "patchlight/deploy/worker-image.sh",
        "patchlight/testbed/labs/ofc2022.yaml",
        "patchlight/controller/policies/models/learned-block-choice.onnx",
    } <= names
    assert not [name for name in names if "__pycache__" in name]


def test_what_an_agent_imports_is_compiled_here(
    cache: Path, tmp_path: Path
) -> None:
    wheels = [
        wheel_of(distribution(name), cache) for name in ("click", "patchlight")
    ]
    made = bytecode_of("r1", wheels, cache)
    modules = {
        cache_from_source(f"{m}.py")
        for m in ("patchlight/agents/service", "click/core")
    }
    with (
        zipfile.ZipFile(made) as bytecode,
        zipfile.ZipFile(wheels[0]) as wheel,
    ):
        names = bytecode.namelist()
        assert modules <= set(names)
        assert not [
            name
            for name in names
            if name.split("/")[0] not in {"click", "patchlight"}
        ]
        for each in (wheel, bytecode):
            each.extractall(tmp_path)
    # A server's Python takes it, whatever date the source has there.
    (tmp_path / "click/core.py").write_text("raise ImportError")
    program = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; import click.core as c; "
    said = subprocess.check_output(
        [sys.executable, "-Sc", program + "print(c.Group.get_command)"]
    )
    assert b"Group.get_command" in said


@pytest.mark.parametrize(
    ("wheel", "expected"),
    [
        ("click-8.1-py3-none-any.whl", (2, 0)),
        ("a-1-cp311-cp311-manylinux_2_34_x86_64.whl", (2, 34)),
        (
            "a-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_28_x86_64.whl",
            (2, 17),
        ),
    ],
)
def test_the_c_library_that_a_wheel_needs(
    wheel: str, expected: tuple[int, int]
) -> None:
    assert oldest_c_library(wheel) == expected


def part(folder: Path, **contents: bytes) -> Part:
    files = {}
    for name, content in contents.items():
        path = folder / f"{name}-1-py3-none-any.whl"
        path.write_bytes(content)
        files[path.name] = BundleFile(path, sha256_of(content), len(content))
    return Part(files, (2, 0))


def test_a_bundle_is_carried_in_a_file(tmp_path: Path) -> None:
    made = part(tmp_path, installer=b"i", patchlight=b"p")
    file = tmp_path / "bundle.tar"
    assert write_bundle({(SERVER, "agent"): made}, file) == file.stat().st_size
    read = FromFile(file, _empty(tmp_path)).part(SERVER, "agent")
    assert (read.release, read.layer) == (made.release, made.layer)
    assert read.installer.path.read_bytes() == b"i"
    assert list(read.own) == ["patchlight-1-py3-none-any.whl"]
    assert list(read.required) == ["installer-1-py3-none-any.whl"]


def test_releases_that_require_the_same_share_a_layer(tmp_path: Path) -> None:
    first = part(tmp_path, installer=b"i", patchlight=b"p", click=b"c")
    second = part(tmp_path, installer=b"i", patchlight=b"other", click=b"c")
    third = part(tmp_path, installer=b"i", patchlight=b"p", click=b"other")
    assert first.layer == second.layer != third.layer
    assert len({first.release, second.release, third.release}) == 3


def test_what_a_bundle_has_not_is_said(tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar"
    write_bundle({(SERVER, "agent"): part(tmp_path, installer=b"i")}, file)
    supply = FromFile(file, _empty(tmp_path))
    with pytest.raises(
        BadInput, match=r"cannot run the agent on Python 3\.12"
    ) as error:
        supply.part(Target("3.12", "x86_64"), "agent")
    assert "--python 3.12" in (error.value.hint or "")


@pytest.mark.parametrize("broken", ["empty", "other", "changed", "outside"])
def test_a_broken_bundle_is_refused(tmp_path: Path, broken: str) -> None:
    file = tmp_path / "bundle.tar"
    write_bundle(
        {(SERVER, "agent"): part(tmp_path, installer=b"installer")}, file
    )
    if broken == "empty":
        file.write_bytes(b"")
    elif broken == "other":
        _tar(file, {"bundle.json": json.dumps({"schema": 7}).encode()})
    elif broken == "changed":
        file.write_bytes(
            file.read_bytes().replace(b"\0installer\0", b"\0inst-ller\0")
        )
    else:
        _tar(file, {"../outside": b""})
    with pytest.raises(BadInput, match="bundle"):
        FromFile(file, _empty(tmp_path))
    assert not (tmp_path / "outside").exists()


def _empty(folder: Path) -> Path:
    (folder / "read").mkdir()
    return folder / "read"


def _tar(file: Path, contents: dict[str, bytes]) -> None:
    with tarfile.open(file, "w") as tar:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def test_this_machine_is_a_target() -> None:
    assert here().python == ".".join(map(str, sys.version_info[:2]))
