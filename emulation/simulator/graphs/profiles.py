"""Copies or downloads PipeDream's profiles, not part of the project, into the user's cache."""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import httpx

from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.graphs.files import read_graph
from patchlight.testbed.graphs.model import ComputationGraph
from patchlight.testbed.linux.files import user_folder

COMMIT = "11c40c015e1b7a8e668363c8521609ad48e287f3"
"""The commit of msr-fiddle/pipedream that the checksums are of."""
BASE_URL = f"https://raw.githubusercontent.com/msr-fiddle/pipedream/{COMMIT}/profiler/"
_REPOSITORY = "https://github.com/msr-fiddle/pipedream"
_AT_MOST = 1 << 20  # bytes a file; the largest is 14 kB
_HINT = f"give --from a clone of {_REPOSITORY}, or the URL of a mirror of its folder profiler/"


def download(
    paths: Mapping[str, str], base_url: str = BASE_URL, timeout_s: float = 20.0
) -> dict[str, bytes]:
    """The files at these paths under ``base_url``: name → path gives name → content.

    ``timeout_s`` is for each wait: to connect, and for the next bytes. ``BadInput`` for an invalid
    address; ``PatchlightError`` without a network, for an error of the server, or over 1 MiB.
    """
    base = base_url if base_url.endswith("/") else f"{base_url}/"
    try:
        root = httpx.URL(base)
    except httpx.InvalidURL as error:
        raise BadInput(f"{base_url!r} is no address to download from: {error}") from error
    if root.scheme not in ("http", "https") or not root.host:
        raise BadInput(f"{base_url!r} is no address to download from: expected https://…")
    with httpx.Client(timeout=timeout_s, follow_redirects=True) as client:
        return {name: _file(client, str(root.join(path))) for name, path in paths.items()}


def _file(client: httpx.Client, url: str) -> bytes:
    content = bytearray()
    try:
        with client.stream("GET", url) as answer:
            if answer.status_code != httpx.codes.OK:
                said = f"{answer.status_code} {answer.reason_phrase}"
                raise _failed(url, f"the server answered {said}")
            for part in answer.iter_bytes():
                content += part
                if len(content) > _AT_MOST:
                    raise _failed(url, f"it is more than {_AT_MOST:,} bytes, no profile")
    except httpx.TimeoutException as error:
        raise _failed(url, "no answer in time") from error
    except httpx.HTTPError as error:
        raise _failed(url, str(error) or type(error).__name__) from error
    return bytes(content)


def _failed(url: str, reason: str) -> PatchlightError:
    return PatchlightError(f"downloading {url}: {reason}", hint=_HINT)


_VISION, _TRANSLATION = "image_classification", "translation"
_KINDS_AND_SUMS = {
    "alexnet": (_VISION, "e9a0bb73a0929b03be3a23cbcdf224c03ae39123bed685de4f1e17b65014d26b"),
    "resnet18": (_VISION, "9514adf4714f637ebf45d614f61a79dac315ae6aaacbfa3f5a851a6531c863c4"),
    "squeezenet1_0": (_VISION, "78938a95d1ca0fee63d9459271ec93761bd5c97e31c0ade8229a8fec0aedf830"),
    "vgg16": (_VISION, "3e914ff5290644c6b1c871002d278e57fcc486c22ac07283480b7779f28e5b08"),
    "gnmt": (_TRANSLATION, "2c5b8415ed45b34b7530d051023de388a7e0dbc02cec38f9e43610f29211dc5a"),
}
SOURCES: Mapping[str, tuple[str, str]] = {
    name: (f"{kind}/profiles/{name}/graph.txt", checksum)
    for name, (kind, checksum) in _KINDS_AND_SUMS.items()
}
"""The five profiles of PAC-ML: name → (path under ``profiler/`` in PipeDream, SHA-256)."""

_GET = (
    "download them with: patchlight graph fetch pipedream; or give a clone of "
    f"{_REPOSITORY} with --from"
)


def profile_cache() -> Path:
    """The user's copies: ``$XDG_CACHE_HOME/patchlight/pipedream``, else in ~/.cache."""
    return user_folder("XDG_CACHE_HOME", ".cache") / "patchlight" / "pipedream"


def profile_in(folder: Path, name: str) -> Path | None:
    """The file of this profile in a folder: ``NAME.txt``, or as in a clone of PipeDream."""
    path = SOURCES[name][0]
    candidates = (folder / f"{name}.txt", folder / path, folder / "profiler" / path)
    return next((file for file in candidates if file.is_file()), None)


def is_published(path: Path, name: str) -> bool:
    """Whether a file is, byte for byte, the profile that PAC-ML's experiments used."""
    return hashlib.sha256(_bytes(path)).hexdigest() == SOURCES[name][1]


def fetch_profiles(source: Path, cache: Path | None = None) -> list[Path]:
    """Copy the five profiles from ``source`` (a folder of them, or a clone) into the cache.

    All are checked first: ``BadInput`` names each that is missing or differs, and nothing is
    written then. Returns the files written.
    """
    files, wrong = _all_in(source)
    contents = {name: _bytes(path) for name, path in files.items()}
    wrong += _others(contents, {name: str(path) for name, path in files.items()})
    if wrong:
        raise BadInput(
            f"cannot take PipeDream's profiles from {source}: " + "; ".join(wrong), hint=_GET
        )
    return _keep(contents, cache or profile_cache())


def download_profiles(base_url: str | None = None, cache: Path | None = None) -> list[Path]:
    """Download the five profiles into the cache, from PipeDream's repository or a mirror of it.

    ``PatchlightError`` if one is missing or differs; nothing is written then. Returns the files.
    """
    base_url = base_url or BASE_URL
    paths = {name: path for name, (path, _) in SOURCES.items()}
    contents = download(paths, base_url)
    if wrong := _others(contents, paths):
        raise PatchlightError(
            f"cannot take PipeDream's profiles from {base_url}: " + "; ".join(wrong), hint=_GET
        )
    return _keep(contents, cache or profile_cache())


def _others(contents: Mapping[str, bytes], sources: Mapping[str, str]) -> list[str]:
    """What is wrong with each content that is not the profile of that name."""
    checksums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    return [
        f"{sources[name]} is not PipeDream's {name}: its SHA-256 is {checksum}, expected {expected}"
        for name, checksum in checksums.items()
        if checksum != (expected := SOURCES[name][1])
    ]


def _keep(contents: Mapping[str, bytes], cache: Path) -> list[Path]:
    parts = {name: cache / f".{name}.{os.getpid()}" for name in contents}
    try:
        cache.mkdir(parents=True, exist_ok=True)
        # Renamed when all are whole, so that no reader sees half a profile, and a full disk
        # leaves what was there.
        for name, part in parts.items():
            part.write_bytes(contents[name])
        return [part.replace(cache / f"{name}.txt") for name, part in parts.items()]
    except OSError as error:
        raise PatchlightError(
            f"writing the profiles to {cache}: {error.strerror or error}",
            hint="choose another place with XDG_CACHE_HOME",
        ) from error
    finally:
        with suppress(OSError):
            for part in parts.values():
                part.unlink(missing_ok=True)


def read_profiles(folder: Path) -> tuple[list[ComputationGraph], bool]:
    """The five profiles in a folder, and whether they are the published ones.

    ``BadInput`` if one is missing, ``GraphFileError`` for the mistakes in one.
    """
    files, wrong = _all_in(folder)
    if wrong:
        raise BadInput(f"cannot read the profiles in {folder}: " + "; ".join(wrong), hint=_GET)
    graphs = [read_graph(path) for path in files.values()]
    return graphs, all(is_published(path, name) for name, path in files.items())


def _all_in(folder: Path) -> tuple[dict[str, Path], list[str]]:
    if not folder.is_dir():
        raise BadInput(f"cannot read PipeDream's profiles: {folder} is not a folder", hint=_GET)
    files = {name: profile_in(folder, name) for name in SOURCES}
    missing = [f"there is no {name}.txt" for name, at in files.items() if not at]
    return {name: at for name, at in files.items() if at}, missing


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"reading the profile {path}: {error.strerror}") from error
