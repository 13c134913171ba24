"""Which host keys the servers of a lab show, and who vouches for them: lab file or known_hosts."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import paramiko
import yaml

from patchlight.deploy.host_keys import USER_FILE
from patchlight.deploy.ssh import Connections, SshHost
from patchlight.testbed.errors import (
    BadInput,
    FileError,
    PatchlightError,
    reason,
)
from patchlight.testbed.host_keys import is_named, known_name
from patchlight.testbed.lab.model import Lab, Server
from patchlight.testbed.labfile.reader import parse_lab, text_of
from patchlight.testbed.labfile.writer import Change, values_of, with_changes


def with_host_keys(
    text: str,
    servers: Mapping[str, str],
    jumps: Mapping[str, str],
) -> str:
    """A lab file's text with fingerprints by server and by ``jump``; ``BadInput`` without room."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    changes: list[Change] = []
    for server in _items(values_of(root).get("servers")):
        keys = values_of(server)
        ssh = keys.get("ssh")
        fingerprint = servers.get(text_of(keys.get("name")))
        if fingerprint is not None:
            if isinstance(ssh, yaml.MappingNode):
                changes.append(_put(ssh, "host_key", fingerprint))
            else:
                changes.append(
                    _put(server, "ssh", f"{{host_key: {fingerprint}}}")
                )
    for owner in (
        values_of(root).get("defaults"),
        *_items(values_of(root).get("servers")),
    ):
        ssh = values_of(owner).get("ssh")
        fingerprint = jumps.get(text_of(values_of(ssh).get("jump")))
        if isinstance(ssh, yaml.MappingNode) and fingerprint is not None:
            changes.append(_put(ssh, "jump_host_key", fingerprint))
    written = with_changes(text, changes)
    before = parse_lab(text)
    expected = tuple(
        _vouched_for(server, servers, jumps) for server in before.servers
    )
    try:
        is_right = parse_lab(written) == before.with_changes(servers=expected)
    except FileError:
        is_right = False
    if not is_right:
        lines = [f"{name}: host_key: {key}" for name, key in servers.items()]
        lines += [
            f"jump {name}: jump_host_key: {key}" for name, key in jumps.items()
        ]
        raise BadInput(
            "the lab file has no place for 'ssh' of a single server:\n    "
            + "\n    ".join(lines),
            hint="A range or an alias stands for several servers: write them one by one, or use "
            "--known-hosts.",
        )
    return written


def _vouched_for(
    server: Server,
    servers: Mapping[str, str],
    jumps: Mapping[str, str],
) -> Server:
    host_key = servers.get(server.name, server.ssh.host_key)
    jump_host_key = jumps.get(server.ssh.jump or "", server.ssh.jump_host_key)
    return replace(
        server,
        ssh=replace(
            server.ssh,
            host_key=host_key,
            jump_host_key=jump_host_key,
        ),
    )


def _put(
    group: yaml.MappingNode,
    key: str,
    value: str,
) -> Change:
    """The change after which a group with at least one key has this value."""
    there = values_of(group).get(key)
    if there is not None:
        return there.start_mark.index, there.end_mark.index, value
    first_value = group.value[0][1]
    if group.flow_style:
        end = first_value.end_mark.index
        return end, end, f", {key}: {value}"
    # On a line of its own before the second key, or, where there is none, before the first.
    place = group.value[min(1, len(group.value) - 1)][0].start_mark
    return place.index, place.index, f"{key}: {value}\n{' ' * place.column}"


def _items(node: yaml.Node | None) -> list[yaml.MappingNode]:
    found = node.value if isinstance(node, yaml.SequenceNode) else []
    return [item for item in found if isinstance(item, yaml.MappingNode)]


_AT_ONCE = 32
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")


@dataclass(frozen=True)
class Shown:
    """The host key that a host shows, and whether that is known: it is, none is, or another.

    ``name`` is a server's, or the address of a jump host. ``before`` are the fingerprints that are
    known where it shows another; ``in_lab_file`` says where they are known.
    """

    name: str
    place: SshHost
    key: paramiko.PKey
    state: Literal["known", "new", "changed"]
    before: tuple[str, ...] = ()
    in_lab_file: bool = False
    jump: str | None = None

    @property
    def fingerprint(self) -> str:
        """``SHA256:…``, as ``ssh-keygen -l`` prints it."""
        return self.key.fingerprint


Looks = Mapping[str, Callable[[Connections], Shown]]
"""How to see each host's key, by its name."""


def looks_at_servers(lab: Lab) -> Looks:
    """The keys of the lab's servers. Jump hosts are logged in to, so theirs have to be known."""

    def look(server: Server) -> Callable[[Connections], Shown]:
        return lambda connections: _look(
            connections,
            server.name,
            SshHost.of(server),
            server,
        )

    return {server.name: look(server) for server in lab.servers}


def looks_at_jump_hosts(lab: Lab) -> Looks:
    """The keys of the hosts that connections to the lab's servers go through."""

    def look(
        name: str,
        place: SshHost,
        jump: str | None,
    ) -> Callable[[Connections], Shown]:
        return lambda connections: _look(
            connections,
            name,
            place,
            jump=jump,
        )

    found = [
        (s.ssh.jump, s.ssh.jump_host, SshHost.before(s)) for s in lab.servers
    ]
    return {
        host.host: look(host.host, place, jump)
        for jump, host, place in found
        if host and place
    }


def shown_keys(
    looks: Looks, progress: Callable[[int, int], None]
) -> dict[str, Shown | PatchlightError]:
    """The key that each host shows, or why there is none; all at once, in ``looks``' order."""

    def look(name: str) -> Shown | PatchlightError:
        try:
            return looks[name](connections)
        except PatchlightError as error:
            return error

    with Connections() as connections, ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = {name: pool.submit(look, name) for name in looks}
        for done, _ in enumerate(as_completed(asked.values()), 1):
            progress(done, len(asked))
        return {name: future.result() for name, future in asked.items()}


def _look(
    connections: Connections,
    name: str,
    place: SshHost,
    server: Server | None = None,
    jump: str | None = None,
) -> Shown:
    key = connections.shown_key(place, server)
    in_files = (each.fingerprint for each in connections.known_keys(place))
    known = tuple(in_files) if place.host_key is None else (place.host_key,)
    if key.fingerprint in known:
        state: Literal["known", "new", "changed"] = "known"
    else:
        state = "changed" if known else "new"
    before = known if state == "changed" else ()
    return Shown(
        name,
        place,
        key,
        state,
        before,
        place.host_key is not None,
        jump,
    )


def read_fingerprints(file: Path) -> dict[str, set[str]]:
    """The fingerprints that somebody wrote down, by server; ``BadInput`` with the first mistake.

    A line has a server and, anywhere behind it, a fingerprint, so that ``ssh-keygen -l`` fits.
    """
    found: dict[str, set[str]] = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"cannot read the fingerprints in {file}: {reason(error)}"
        ) from error
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        keys = [word for word in words[1:] if _FINGERPRINT.fullmatch(word)]
        if len(keys) != 1:
            raise BadInput(
                f"{file}:{number}: expected a server and the fingerprint of its key, like "
                "'server1 SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU'"
            )
        found.setdefault(words[0], set()).add(keys[0])
    return found


def vouch_in_lab_file(file: Path, shown: Iterable[Shown]) -> None:
    """Write the keys' fingerprints into a lab file; ``BadInput`` where it has no place for one."""
    file = file.resolve()
    shown = list(shown)
    try:
        text = file.read_bytes().decode()
        servers = {
            each.name: each.fingerprint for each in shown if each.jump is None
        }
        jumps = {
            each.jump: each.fingerprint
            for each in shown
            if each.jump is not None
        }
        _write_anew(file, with_host_keys(text, servers, jumps))
    except OSError as error:
        raise PatchlightError(
            f"writing host keys into {file}: {error.strerror}",
            hint="Move it to a writable folder, or use --known-hosts.",
        ) from error


def vouch_in_known_hosts(
    shown: Iterable[Shown], file: Path = USER_FILE
) -> None:
    """Write the keys into a ``known_hosts`` file, in place of other ones of the same hosts."""
    file = file.expanduser().resolve()
    try:
        file.parent.mkdir(
            mode=0o700,
            parents=True,
            exist_ok=True,
        )
        text = (
            file.read_bytes().decode(errors="surrogateescape")
            if file.exists()
            else ""
        )
        lines = text.splitlines()
        for each in shown:
            name = known_name(each.place.host, each.place.port)
            key = each.key
            if each.state == "changed":
                lines = [
                    left
                    for line in lines
                    if (left := _without(line, name)) is not None
                ]
            lines.append(f"{name} {key.get_name()} {key.get_base64()}")
        _write_anew(file, "".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise PatchlightError(
            f"writing host keys into {file}: {error.strerror}",
            hint="Check the file's owner: ls -l",
        ) from error


def _without(line: str, name: str) -> str | None:
    """A line of ``known_hosts`` without a host; ``None`` if it is about no other."""
    names, space, rest = line.strip().partition(" ")
    if not space or names.startswith(("#", "@")):
        return line
    others = [other for other in names.split(",") if not is_named(name, other)]
    if len(others) == len(names.split(",")):
        return line
    return f"{','.join(others)} {rest}" if others else None


def _write_anew(file: Path, text: str) -> None:
    """In one go: who reads it sees the old text or the new one, whole. Mode and owner stay."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    there = file.stat() if file.exists() else None
    fd = os.open(
        draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
    )
    try:
        with os.fdopen(fd, "wb") as opened:
            opened.write(text.encode(errors="surrogateescape"))
            if there is not None:
                if (there.st_uid, there.st_gid) != (
                    os.geteuid(),
                    os.getegid(),
                ):
                    os.fchown(fd, there.st_uid, there.st_gid)
                os.fchmod(fd, there.st_mode & 0o7777)
            opened.flush()
            os.fsync(fd)
        os.replace(draft, file)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
