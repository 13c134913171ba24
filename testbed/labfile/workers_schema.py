"""The keys of a lab file under ``workers:``, each with its type: what jobs' workers may have."""

import re
from typing import Any

from patchlight.testbed import units
from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.fields import ListOf, Number, Text, plain, quantity
from patchlight.testbed.io.groups import Fields, Group, Key
from patchlight.testbed.io.issues import short
from patchlight.testbed.lab.access import DYNAMIC, WRITABLE, WorkerPolicy

_LONGEST_PATTERN = 255
_USER = r"^[A-Za-z_][A-Za-z0-9_.-]{0,31}$"
_LEAST_BYTES, _MOST_BYTES = 16 * 2**20, 2**44


def _folder(text: str) -> str:
    path = text.removesuffix(WRITABLE)
    parts = path.split("/")
    if path.startswith("/") and path.strip("/") and path.isprintable() and ".." not in parts:
        return text
    example = f"'/srv/data', or '/srv/data{WRITABLE}' to write to"
    raise BadInput(f"{short(text)!r} is no folder of the servers: expected one like {example}")


def _pattern(text: str) -> str:
    if text.strip() and text.isprintable() and len(text) <= _LONGEST_PATTERN:
        return text
    raise BadInput(f"{short(text)!r} is no pattern of images: expected one like 'pytorch/*'")


def _user(text: str) -> str:
    if re.match(_USER, text):
        return text
    raise BadInput(f"{short(text)!r} is no user: expected dynamic, root or another name")


def _memory(text: str) -> int:
    size = units.parse_size(text)
    if _LEAST_BYTES <= size <= _MOST_BYTES:
        return size
    raise BadInput(f"{short(text)!r} is out of bounds: expected 16MiB to 16TiB")


_FOLDER = Text("a folder", _folder, {"pattern": "^/"}, example="/srv/data")
_PATTERN = Text("a pattern of images", _pattern, {"minLength": 1}, example="pytorch/*")
WORKERS = Group(
    "what jobs' workers may have",
    Key(
        "images",
        ListOf(_PATTERN, "patterns"),
        "the images that containers may be of, beside that of Patchlight's workers",
        default="any",
        example="[pytorch/*]",
    ),
    Key(
        "mounts",
        ListOf(_FOLDER, "folders"),
        f"the folders of the servers that workers may see; with {WRITABLE}, also write to, as "
        "checkpoints need it",
        default="none",
        example='[/srv/data, "/srv/checkpoints:rw"]',
    ),
    Key(
        "memory",
        quantity(_memory, units.SIZE, "a size of memory", "64GB"),
        "the most memory of a server that one worker may have",
        default="no limit of the lab's",
    ),
    Key(
        "cpus",
        Number("a number of CPUs", lowest=0.01, highest=4096),
        "the most CPUs of a server that one worker may use",
        default="no limit of the lab's",
        example="16",
    ),
    Key(
        "user",
        Text("a user of the servers", _user, {"pattern": _USER}, example="trainer"),
        "whom workers run as: a user of the servers, or dynamic, one for each person who submits "
        "jobs",
        default="dynamic",
    ),
)


def worker_policy_of(fields: Fields) -> WorkerPolicy:
    """What a file without mistakes says under ``workers:``."""
    said = dict(plain(fields))
    if "memory" in said:
        said["memory_bytes"] = said.pop("memory")
    for key in ("images", "mounts"):
        if key in said:
            said[key] = tuple(said[key])
    return WorkerPolicy(**said)


def worker_policy_document(policy: WorkerPolicy) -> dict[str, Any]:
    """The keys that say the same in a file."""
    said = {
        "images": None if policy.images is None else list(policy.images),
        "mounts": list(policy.mounts) or None,
        "memory": None if policy.memory_bytes is None else units.write_size(policy.memory_bytes),
        "cpus": policy.cpus,
        "user": None if policy.user == DYNAMIC else policy.user,
    }
    return {key: value for key, value in said.items() if value is not None}
