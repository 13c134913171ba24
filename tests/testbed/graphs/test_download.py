"""Downloading PipeDream's profiles, from a server on loopback."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from patchlight.cli.graph import graph
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.graphs.profiles import (
    BASE_URL,
    SOURCES,
    download,
    download_profiles,
    profile_cache,
    read_profiles,
)


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
                over.wait(20)
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


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return profile_cache()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(graph, ["fetch", "pipedream", *arguments])


def test_the_public_repository_is_asked_at_one_commit() -> None:
    host = "https://raw.githubusercontent.com/msr-fiddle/pipedream/"
    assert BASE_URL.startswith(host)
    commit, folder, end = BASE_URL.removeprefix(host).split("/")
    assert (len(commit), int(commit, 16) > 0, folder, end) == (40, True, "profiler", "")


def test_the_five_come_into_the_cache(full: Mirror, cache: Path) -> None:
    result = run("--url", full.url)
    assert result.exit_code == 0, result.output
    assert result.output.count("wrote ") == 5
    assert sorted(full.asked) == sorted(path for path, _ in SOURCES.values())
    assert sorted(path.name for path in cache.iterdir()) == sorted(f"{n}.txt" for n in SOURCES)
    assert read_profiles(cache)[1]


def test_the_mirror_may_be_named_in_the_environment(
    full: Mirror, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATCHLIGHT_PIPEDREAM_URL", full.url)
    assert run().exit_code == 0
    assert len(list(cache.iterdir())) == 5


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
    error = run("--url", full.url).exception
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
    error = run("--url", "http://127.0.0.1:1/profiler").exception
    assert isinstance(error, PatchlightError)
    assert "downloading http://127.0.0.1:1/profiler/image_classification/" in str(error)
    assert "refused" in str(error)
    assert not cache.exists()


@pytest.mark.parametrize("url", ["ftp://x/y", "pipedream", "http://", "http://[::1", "file:///x"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(BadInput, match="no address to download from"):
        download({"a": "a"}, url)
