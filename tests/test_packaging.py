"""What `pip install .` would install."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("agents", "controller", "deploy", "emulation", "testbed")
DATA = {
    "testbed/labs": ["*.yaml"],
    "controller/policies/models": ["*.onnx", "*.json"],
    "emulation/learning/configs": ["*.yaml"],
    "deploy": ["Dockerfile", "*.sh", "*.txt"],
}


def _modules() -> list[Path]:
    """Every module of the distribution, each once: ``patchlight`` has links to the folders."""
    ours = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    command = (ROOT / "patchlight" / "cli").rglob("*.py")
    return [*ours, *command, *(ROOT / "patchlight").glob("*.py")]


def _in_wheel(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    return name if name.startswith("patchlight/") else f"patchlight/{name}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel built from a copy, so that nothing stale in build/ gets into it."""
    source = tmp_path_factory.mktemp("source") / "patchlight"
    source.mkdir()
    for name in (*FOLDERS, "patchlight", "tests", "benchmarks"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    wheels = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", str(wheels)]
    done = subprocess.run([*pip, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = wheels.glob("patchlight-*.whl")
    return zipfile.ZipFile(built)


def test_every_module_and_data_file_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    modules = {_in_wheel(path) for path in _modules()}
    data = {
        _in_wheel(path)
        for folder, kinds in DATA.items()
        for kind in kinds
        for path in (ROOT / folder).glob(kind)
    } | {"patchlight/py.typed"}
    assert "patchlight/testbed/labs/ofc2022.yaml" in data
    assert "patchlight/controller/policies/models/learned-block.onnx" in data
    assert "patchlight/deploy/worker-image.sh" in data
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert inside == modules | data


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for path in _modules()}
    without = [str(f.relative_to(ROOT)) for f in folders if not (f / "__init__.py").exists()]
    assert without == []


def test_the_wheel_has_a_licence_and_a_command(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert any(name.endswith("LICENSE") for name in names)
    (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
    scripts = configparser.ConfigParser()
    scripts.read_string(wheel.read(entry_points).decode())
    module, _, function = scripts["console_scripts"]["patchlight"].partition(":")
    assert f"{module.replace('.', '/')}.py" in names
    assert function == "main"


def test_a_plain_install_asks_for_os_ken_and_not_for_ryu(wheel: zipfile.ZipFile) -> None:
    (metadata,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    required = [
        line.partition(":")[2].strip()
        for line in wheel.read(metadata).decode().splitlines()
        if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    names = {line.split(">")[0].split("=")[0].strip() for line in required}
    assert "os-ken" in names
    assert "ryu" not in names
