"""``patchlight graph``: what it prints, fetches and refuses."""

import json
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from patchlight.emulation.simulator.commands.graph import graph
from patchlight.emulation.simulator.graphs.profiles import (
    BASE_URL,
    SOURCES,
    download,
    download_profiles,
    fetch_profiles,
    profile_cache,
    read_profiles,
)
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.graphs import BUILTIN_NAMES, builtin_graph, read_graph
from tests.support.waiting import PATIENCE_S

CHAIN = "node1 -- Input -- forward_compute_time=1.5, backward_compute_time=0.0, "
CHAIN += "activation_size=8.0, parameter_size=0.0\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return profile_cache()


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
    ("name", "message"), [("alexnte", "did you mean 'alexnet'"), (".", "it is a folder")]
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
    assert f"{file}:2:11: node7 is not there" in str(error)


def test_fetch_brings_the_five_profiles_into_the_cache(pipedream: Path, cache: Path) -> None:
    result = run("fetch", "pipedream", "--from", str(pipedream))
    assert result.exit_code == 0
    assert sorted(path.name for path in cache.iterdir()) == sorted(f"{n}.txt" for n in SOURCES)
    graphs, published = read_profiles(cache)
    assert published
    assert [each.name for each in graphs] == list(SOURCES)
    assert "pipedream/gnmt" in run("show").output
    assert "48 operations, 58 edges" in run("show", "pipedream/gnmt").output


def test_fetch_takes_a_clone_too(pipedream: Path, cache: Path, tmp_path: Path) -> None:
    for name, (path, _) in SOURCES.items():
        target = tmp_path / "clone" / "profiler" / path
        target.parent.mkdir(parents=True)
        shutil.copy(pipedream / f"{name}.txt", target)
    assert run("fetch", "pipedream", "--from", str(tmp_path / "clone")).exit_code == 0
    assert read_profiles(tmp_path / "clone")[1]
    assert len(list(cache.iterdir())) == 5


def test_fetch_refuses_other_files_and_writes_nothing(
    pipedream: Path, cache: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(pipedream, other)
    (other / "vgg16.txt").write_text(CHAIN)
    (other / "gnmt.txt").unlink()
    with pytest.raises(BadInput) as caught:
        fetch_profiles(other)
    assert "vgg16.txt is not PipeDream's vgg16: its SHA-256 is" in str(caught.value)
    assert "no gnmt.txt" in str(caught.value)
    assert not cache.exists()
    error = run("fetch", "pipedream", "--from", str(tmp_path / "nowhere")).exception
    assert "is not a folder" in str(error)


def test_ones_own_profiles_are_read_but_not_called_the_published_ones(
    pipedream: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(pipedream, mine)
    (mine / "vgg16.txt").write_text(CHAIN)
    assert not read_profiles(mine)[1]


def test_show_draws(tmp_path: Path) -> None:
    file = tmp_path / "vgg16.svg"
    result = run("show", "vgg16", "--draw", str(file))
    assert (result.exit_code, result.output) == (0, f"wrote {file}\n")
    assert file.read_bytes().startswith(b"<?xml")


def test_show_draws_nothing_it_cannot(tmp_path: Path) -> None:
    error = run("show", "vgg16", "--draw", str(tmp_path / "vgg16.gif")).exception
    assert "expected a name ending in .svg, .png, .pdf" in str(error)
    error = run("show", "vgg16", "--draw", str(tmp_path / "none" / "vgg16.png")).exception
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
    model, file = f"{tmp_path}/mine.py:make", tmp_path / "mine.json"
    options = ("--batch", "6", "--device", "cpu", "--repeat", "2")
    result = run("profile", model, *options, "--output", str(file))
    assert result.exit_code == 0, result.exception
    assert f"wrote {file}: 3 operations" in result.output
    measured = read_graph(file)
    assert (measured.origin, measured.batch) == ("profiled", 6)
    assert measured.parameter_bytes == 4 * (8 * 16 + 16)
    assert "measured on" in run("show", str(file)).output
    printed = json.loads(run("profile", model, *options).stdout)
    assert [each["name"] for each in printed["operations"]] == ["input_1", "0", "1"]


def test_profile_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    error = run("profile", "alexnet", "--output", str(tmp_path / "none" / "x.json")).exception
    assert "there is no folder" in str(error)
    assert "no model 'alexnte'" in str(run("profile", "alexnte").exception)
    if not torch.cuda.is_available():
        error = run("profile", "alexnet", "--device", "cuda").exception
        assert "PyTorch sees no GPU here" in str(error)


def test_profile_without_pytorch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    error = run("profile", "alexnet").exception
    assert "needs PyTorch" in str(error)
    assert "pip install 'patchlight[learn]'" in str(error)


@dataclass
class Mirror:
    """Serves contents by path; ``asked`` is what was asked for."""

    url: str
    contents: dict[str, bytes]
    asked: list[str] = field(default_factory=list)
    silent: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    found = Mirror("", {})
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.removeprefix("/profiler/")
            found.asked.append(path)
            if found.silent.is_set():
                over.wait(PATIENCE_S)
                return
            content = found.contents.get(path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, format: str, *args: object) -> None:
            """Not on the test's output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_port}/profiler"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield found
    over.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def full(mirror: Mirror, pipedream: Path) -> Mirror:
    mirror.contents = {
        path: (pipedream / f"{name}.txt").read_bytes() for name, (path, _) in SOURCES.items()
    }
    return mirror


def fetch(*arguments: str) -> Result:
    return run("fetch", "pipedream", *arguments)


def test_the_public_repository_is_asked_at_one_commit() -> None:
    host = "https://raw.githubusercontent.com/msr-fiddle/pipedream/"
    assert BASE_URL.startswith(host)
    commit, folder, end = BASE_URL.removeprefix(host).split("/")
    assert (len(commit), int(commit, 16) > 0, folder, end) == (40, True, "profiler", "")


def test_the_five_come_into_the_cache(full: Mirror, cache: Path) -> None:
    result = fetch("--from", full.url)
    assert result.exit_code == 0, result.output
    assert result.output.count("wrote ") == 5
    assert sorted(full.asked) == sorted(path for path, _ in SOURCES.values())
    assert sorted(path.name for path in cache.iterdir()) == sorted(f"{n}.txt" for n in SOURCES)
    assert read_profiles(cache)[1]


def test_another_content_is_refused_and_nothing_is_written(full: Mirror, cache: Path) -> None:
    path = SOURCES["vgg16"][0]
    full.contents[path] += b"\n"
    with pytest.raises(PatchlightError) as refused:
        download_profiles(full.url)
    assert f"{path} is not PipeDream's vgg16: its SHA-256 is " in str(refused.value)
    assert str(refused.value).count("is not PipeDream's") == 1
    assert not cache.exists()


def test_what_was_in_the_cache_stays_if_the_new_is_refused(full: Mirror, cache: Path) -> None:
    download_profiles(full.url)
    full.contents[SOURCES["gnmt"][0]] = b"<html>sign in</html>"
    with pytest.raises(PatchlightError, match="is not PipeDream's gnmt"):
        download_profiles(full.url)
    assert read_profiles(cache)[1]


def test_a_file_that_is_not_there(full: Mirror, cache: Path) -> None:
    del full.contents[SOURCES["gnmt"][0]]
    error = fetch("--from", full.url).exception
    assert isinstance(error, PatchlightError)
    assert "translation/profiles/gnmt/graph.txt: the server answered 404 Not Found" in str(error)
    assert "--from" in str(error)
    assert not cache.exists()


def test_a_flood_is_cut_off(mirror: Mirror) -> None:
    mirror.contents["large"] = b"x" * (3 << 20)
    with pytest.raises(PatchlightError, match="more than 1,048,576 bytes"):
        download({"large": "large"}, mirror.url)


def test_a_server_that_says_nothing(mirror: Mirror) -> None:
    mirror.silent.set()
    with pytest.raises(PatchlightError, match="no answer in time"):
        download({"a": "a"}, mirror.url, timeout_s=0.2)


def test_no_server_at_all(mirror: Mirror, cache: Path) -> None:
    # Port 1 of loopback: nobody listens there, and the answer comes at once.
    error = fetch("--from", "http://127.0.0.1:1/profiler").exception
    assert isinstance(error, PatchlightError)
    assert "downloading http://127.0.0.1:1/profiler/image_classification/" in str(error)
    assert "refused" in str(error)
    assert not cache.exists()


@pytest.mark.parametrize("url", ["ftp://x/y", "pipedream", "http://", "http://[::1", "file:///x"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(BadInput, match="no address to download from"):
        download({"a": "a"}, url)
