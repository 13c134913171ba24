"""``patchlight graph``: what it prints and refuses."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from patchlight.emulation.experiments.pac_ml.run import find_profiles
from patchlight.emulation.simulator.commands.graph import graph
from patchlight.emulation.simulator.graphs.profiles import SOURCES
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import BUILTIN_NAMES, builtin_graph, read_graph

CHAIN = (
    "node1 -- Input -- forward_compute_time=1.5, backward_compute_time=0.0, "
)
CHAIN += "activation_size=8.0, parameter_size=0.0\n"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(graph, arguments)


def test_list_has_every_built_in_graph() -> None:
    found = json.loads(run("show", "--json").output)
    assert [each["name"] for each in found] == list(BUILTIN_NAMES)
    vgg = next(each for each in found if each["name"] == "vgg16")
    assert vgg["origin"] == "computed"
    assert vgg["parameter_bytes"] == 4 * 138_357_544
    assert "computed" in run("show").output


def test_show_prints_operations_and_totals() -> None:
    output = run("show", "alexnet", "--backward").output
    assert output.startswith("alexnet: computed on NVIDIA A100")
    assert "Linear(9216, 4096)" in output
    assert "23 operations, 22 edges" in output
    assert "A training step: 46 operations, 45 edges" in output


def test_what_show_writes_as_json_reads_back(tmp_path: Path) -> None:
    file = tmp_path / "copy.json"
    file.write_text(run("show", "gnmt", "--json").output)
    assert read_graph(file) == builtin_graph("gnmt")
    assert run("show", str(file), "--json").output == file.read_text()


def test_a_file_comes_before_a_name_and_brackets_are_no_markup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "[red]").write_text(CHAIN.replace("Input", "[bold]odd[/bold]"))
    monkeypatch.chdir(tmp_path)
    output = run("show", "[red]").output
    assert output.startswith("[red]: measured")
    assert "[bold]odd[/bold]" in output


@pytest.mark.parametrize(
    ("name", "message"),
    [("alexnte", "did you mean 'alexnet'"), (".", "it is a folder")],
)
def test_what_is_no_graph_is_said(name: str, message: str) -> None:
    error = run("show", name).exception
    assert isinstance(error, BadInput)
    assert message in str(error)


def test_mistakes_in_a_file_are_named_with_their_place(tmp_path: Path) -> None:
    file = tmp_path / "graph.txt"
    file.write_text(CHAIN + "\tnode1 -- node7\n")
    error = run("show", str(file)).exception
    assert isinstance(error, BadInput)
    assert f"{file}:2:11: node7 does not exist" in str(error)


def test_profiles_are_read_from_a_clone_or_a_folder(
    pipedream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, (path, _) in SOURCES.items():
        target = tmp_path / "clone" / "profiler" / path
        target.parent.mkdir(parents=True)
        shutil.copy(pipedream / f"{name}.txt", target)
    for folder in (
        pipedream,
        tmp_path / "clone",
        tmp_path / "clone" / "profiler",
    ):
        found = find_profiles(folder)
        assert found.published
        assert found.models == list(SOURCES)
    monkeypatch.setenv("PATCHLIGHT_PROFILES", str(pipedream))
    assert find_profiles(None).published
    assert (
        "48 operations, 58 edges"
        in run("show", str(pipedream / "gnmt.txt")).output
    )
    (tmp_path / "clone/profiler" / SOURCES["gnmt"][0]).unlink()
    with pytest.raises(BadInput, match=r"there is no gnmt\.txt"):
        find_profiles(tmp_path / "clone")


def test_ones_own_profiles_are_read_but_not_called_the_published_ones(
    pipedream: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(pipedream, mine)
    (mine / "vgg16.txt").write_text(CHAIN)
    assert not find_profiles(mine).published


def test_show_draws(tmp_path: Path) -> None:
    file = tmp_path / "vgg16.svg"
    result = run("show", "vgg16", "--draw", str(file))
    assert (result.exit_code, result.output) == (0, f"wrote {file}\n")
    assert file.read_bytes().startswith(b"<?xml")


def test_show_draws_nothing_it_cannot(tmp_path: Path) -> None:
    error = run(
        "show", "vgg16", "--draw", str(tmp_path / "vgg16.gif")
    ).exception
    assert "expected a name ending in .svg, .png, .pdf" in str(error)
    error = run(
        "show", "vgg16", "--draw", str(tmp_path / "none" / "vgg16.png")
    ).exception
    assert "cannot write the picture" in str(error)
    assert run("show", "vgg16", "--draw", "x.svg", "--json").exit_code == 2


def test_profile_measures_ones_own_model(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def make(batch=4):\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU())\n"
        "    return model, torch.randn(batch, 8)\n"
    )
    model = f"{tmp_path}/mine.py:make"
    file = tmp_path / "mine.json"
    options = ("--batch", "6", "--device", "cpu", "--repeat", "2")
    result = run("profile", model, *options, "--output", str(file))
    assert result.exit_code == 0, result.exception
    assert f"wrote {file}: 3 operations" in result.output
    measured = read_graph(file)
    assert (measured.origin, measured.batch) == ("profiled", 6)
    assert measured.parameter_bytes == 4 * (8 * 16 + 16)
    assert "measured on" in run("show", str(file)).output
    printed = json.loads(run("profile", model, *options, "--quick").stdout)
    assert "median of 1 runs after 1 to warm up" in printed["notes"]
    assert [each["name"] for each in printed["operations"]] == [
        "input_1",
        "0",
        "1",
    ]


def test_profile_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    error = run(
        "profile", "alexnet", "--output", str(tmp_path / "none" / "x.json")
    ).exception
    assert "there is no folder" in str(error)
    assert "unknown model 'alexnte'" in str(
        run("profile", "alexnte").exception
    )
    if not torch.cuda.is_available():
        error = run("profile", "alexnet", "--device", "cuda").exception
        assert "PyTorch finds no GPU" in str(error)


def test_profile_without_pytorch_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    error = run("profile", "alexnet").exception
    assert "needs the Python package torch" in str(error)
    assert "pip install 'patchlight[learn]'" in str(error)
