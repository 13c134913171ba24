"""What `pip install .` installs, and that it works away from the checkout."""

import configparser
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

# All of it in the process of the one test that needs the machine: one wheel is enough, and takes
# its time to build.
pytestmark = [pytest.mark.xdist_group("machine"), pytest.mark.wings]

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("agents", "controller", "deploy", "emulation", "testbed")
DATA = {
    "testbed/labs": ["*.yaml"],
    "controller/api": ["*.json"],
    "controller/circuits/protocols/gnmi_proto": ["*"],
    "controller/policies/models": ["*.onnx", "*.json"],
    "emulation/experiments/architectures": ["*.yaml"],
    "emulation/learning/configs": ["*.yaml"],
    "emulation/servers": ["*.sh"],
    "deploy": ["Dockerfile", "*.sh", "*-constraint.txt"],
    "deploy/prometheus": ["*.yml"],
    "deploy/slurm": ["*.sh"],
    "patchlight/cli/dashboard": ["*.js", "*.css"],
    "patchlight/cli/report": ["*.j2"],
    "deploy/grafana": ["*.json"],
}


def _modules() -> list[Path]:
    """Every module of the distribution, each once: ``patchlight`` has links to the folders."""
    ours = [
        path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")
    ]
    rooms = [
        ROOT / "patchlight" / name for name in ("cli", "client", "console")
    ]
    ours += [path for room in rooms for path in room.rglob("*.py")]
    return [*ours, *(ROOT / "patchlight").glob("*.py")]


def _in_wheel(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    return name if name.startswith("patchlight/") else f"patchlight/{name}"


@pytest.fixture(scope="module")
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy, so that nothing stale in build/ gets into it."""
    source = tmp_path_factory.mktemp("source") / "patchlight"
    source.mkdir()
    for name in (*FOLDERS, "patchlight", "tests", "benchmarks"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(
            ROOT / name, source / name, symlinks=True, ignore=ignored
        )
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    wheels = tmp_path_factory.mktemp("wheels")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--quiet",
        "--wheel-dir",
        str(wheels),
    ]
    if importlib.util.find_spec("setuptools") is not None:
        # An environment of its own takes longer than the wheel.
        pip.append("--no-build-isolation")
    done = subprocess.run(
        [*pip, str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (built,) = wheels.glob("patchlight-*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(wheel_file: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(wheel_file)


Run = Callable[..., str]


@pytest.fixture(scope="module")
def elsewhere(
    wheel_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    """Runs Python in a user's folder, with the wheel installed beside other people's packages.

    There is an ``agents`` package, as ``openai-agents`` installs one, and in the folder are an
    ``agents``, a ``controller`` and more of the user's own. To import any of them is an error.
    """
    site = tmp_path_factory.mktemp("site")
    folder = tmp_path_factory.mktemp("elsewhere")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--quiet",
        "--target",
        str(site),
    ]
    subprocess.run([*pip, str(wheel_file)], check=True, capture_output=True)
    for package in (
        site / "agents",
        *(folder / name for name in (*FOLDERS, "tests")),
    ):
        package.mkdir()
        (package / "__init__.py").write_text(
            "raise ImportError('this is not Patchlight')\n"
        )
    environment = {**os.environ, "PYTHONPATH": str(site)}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    program = "import patchlight.testbed.linux as p; print(p.deploy_file('docker-engine.sh'))"
    assert (
        run("-c", program).strip()
        == f"{site}/patchlight/deploy/docker-engine.sh"
    )
    return run


@pytest.mark.parametrize(
    "arguments",
    [
        ("-c", "from patchlight import EmulatedLab, Lab, PortMap, simulate"),
        ("-m", "patchlight", "lab", "check", "ofc2022"),
        ("-m", "patchlight", "policy", "show"),
        ("-m", "patchlight", "simulate", "--trace", "helios", "--jobs", "20"),
        ("-c", "from patchlight import ControllerClient"),
        ("-m", "patchlight.agents", "--help"),
        ("-m", "patchlight.agents.training", "--help"),
        ("-m", "patchlight", "controller", "run", "--help"),
        (
            "-m",
            "patchlight.controller.packet_switches.openflow.speaker",
            "--help",
        ),
        ("-m", "patchlight.emulation.lab.gpus", "--help"),
        ("-m", "patchlight.emulation.optical", "--help"),
    ],
    ids=lambda arguments: arguments[1].partition(" ")[0],
)
def test_it_works_beside_packages_of_the_same_names(
    elsewhere: Run, arguments: tuple[str, ...]
) -> None:
    elsewhere(*arguments)


def test_its_scripts_find_what_they_run(elsewhere: Run) -> None:
    program = (
        "import subprocess; from patchlight.testbed.linux import deploy_file\n"
        "print(subprocess.run(['bash', deploy_file('docker-engine.sh'), 'status'],\n"
        "    capture_output=True, text=True, env={'PATH': '/usr/bin:/bin'}).stderr)"
    )
    assert elsewhere("-c", program).strip() in ("", "no Docker engine answers")


@pytest.mark.root
@pytest.mark.ovs
def test_a_job_trains_in_an_emulated_lab(elsewhere: Run) -> None:
    patchlight = ("-m", "patchlight")
    name = f"wheel{os.getpid()}"
    up = (
        "emulate",
        "up",
        "ofc2022",
        "--name",
        name,
        "--scale",
        "1000",
        "--worker-kind",
        "process",
    )
    elsewhere(*patchlight, *up)
    try:
        job = (
            "--workers",
            "2",
            "--iterations",
            "3",
            "--gradient",
            "4MB",
            "--compute",
        )
        submit = (
            "job",
            "submit",
            "away",
            "--lab",
            name,
            *job,
            "Tesla M40=10ms",
            "--follow",
        )
        assert "done in" in elsewhere(*patchlight, *submit)
    finally:
        elsewhere(*patchlight, "emulate", "down", name)


def test_every_module_and_data_file_is_in_the_wheel(
    wheel: zipfile.ZipFile,
) -> None:
    modules = {_in_wheel(path) for path in _modules()}
    data = {
        _in_wheel(path)
        for folder, kinds in DATA.items()
        for kind in kinds
        for path in (ROOT / folder).glob(kind)
    } | {"patchlight/py.typed"}
    assert "patchlight/testbed/labs/ofc2022.yaml" in data
    assert (
        "patchlight/controller/policies/models/learned-block-choice.onnx"
        in data
    )
    assert "patchlight/deploy/worker-image.sh" in data
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert inside == modules | data


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for path in _modules()}
    without = [
        str(f.relative_to(ROOT))
        for f in folders
        if not (f / "__init__.py").exists()
    ]
    assert without == []


def test_the_wheel_has_a_licence_and_a_command(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert any(name.endswith("LICENSE") for name in names)
    (entry_points,) = (
        name for name in names if name.endswith("entry_points.txt")
    )
    scripts = configparser.ConfigParser()
    scripts.read_string(wheel.read(entry_points).decode())
    module, _, function = scripts["console_scripts"]["patchlight"].partition(
        ":"
    )
    assert f"{module.replace('.', '/')}.py" in names
    assert function == "main"


def test_a_plain_install_asks_for_os_ken_and_not_for_ryu(
    wheel: zipfile.ZipFile,
) -> None:
    (metadata,) = (
        name for name in wheel.namelist() if name.endswith("METADATA")
    )
    required = [
        line.partition(":")[2].strip()
        for line in wheel.read(metadata).decode().splitlines()
        if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    names = {line.split(">")[0].split("=")[0].strip() for line in required}
    assert "os-ken" in names
    assert "ryu" not in names
