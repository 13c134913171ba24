"""Downloads PipeDream's profiles from its public repository, at one commit."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from patchlight.testbed.errors import BadInput, PatchlightError

COMMIT = "11c40c015e1b7a8e668363c8521609ad48e287f3"
"""The commit of msr-fiddle/pipedream that the checksums are of."""
BASE_URL = f"https://raw.githubusercontent.com/msr-fiddle/pipedream/{COMMIT}/profiler/"
_AT_MOST = 1 << 20  # bytes a file; the largest is 14 kB
_HINT = (
    "with another way to the files, use it: --url for a mirror of the repository's profiler/ "
    "folder, or --from for a clone of https://github.com/msr-fiddle/pipedream"
)


def download(
    paths: Mapping[str, str], base_url: str = BASE_URL, timeout_s: float = 20.0
) -> dict[str, bytes]:
    """The files at these paths under ``base_url``: name → path gives name → content.

    ``timeout_s`` is for each wait: to connect, and for the next bytes. ``BadInput`` for an address
    that is none; ``PatchlightError`` if one cannot be had: no network, an error of the server, or
    more than 1 MiB.
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
                raise PatchlightError(
                    f"downloading {url}: the server answered {answer.status_code} "
                    f"{answer.reason_phrase}",
                    hint=_HINT,
                )
            for part in answer.iter_bytes():
                content += part
                if len(content) > _AT_MOST:
                    raise PatchlightError(
                        f"downloading {url}: it is more than {_AT_MOST:,} bytes, no profile",
                        hint=_HINT,
                    )
    except httpx.TimeoutException as error:
        raise PatchlightError(f"downloading {url}: no answer in time", hint=_HINT) from error
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise PatchlightError(f"downloading {url}: {reason}", hint=_HINT) from error
    return bytes(content)
