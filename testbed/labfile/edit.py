"""Values written into a lab file's text where they belong; all else stays as its owner wrote it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import yaml

from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.issues import FileError
from patchlight.testbed.lab.model import Lab, Server
from patchlight.testbed.labfile.reader import parse_lab

_Change = tuple[int, int, str]
"""From where to where in the text, and what stands there then."""


def with_host_keys(text: str, servers: Mapping[str, str], jumps: Mapping[str, str]) -> str:
    """The text of a good lab file with the fingerprints of host keys in it.

    ``servers`` has them by server, ``jumps`` by the text of ``jump``. ``BadInput`` where the file
    is written in a way that leaves no place for one (a range stands for several servers).
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    changes: list[_Change] = []
    for server in _items(_values(root).get("servers")):
        keys = _values(server)
        ssh = keys.get("ssh")
        fingerprint = servers.get(_text(keys.get("name")))
        if fingerprint is not None:
            if isinstance(ssh, yaml.MappingNode):
                changes.append(_put(ssh, "host_key", fingerprint))
            else:
                changes.append(_put(server, "ssh", f"{{host_key: {fingerprint}}}"))
    for ssh in _ssh_groups(root):
        fingerprint = jumps.get(_text(_values(ssh).get("jump")))
        if fingerprint is not None:
            changes.append(_put(ssh, "jump_host_key", fingerprint))
    written = text
    for start, end, new in sorted(set(changes), reverse=True):
        written = written[:start] + new + written[end:]
    _check(text, written, servers, jumps)
    return written


def _check(text: str, written: str, servers: Mapping[str, str], jumps: Mapping[str, str]) -> None:
    """Whatever the file looks like: it says what it said, and the fingerprints."""
    before = parse_lab(text)
    expected = before.with_changes(
        servers=tuple(_vouched_for(server, servers, jumps) for server in before.servers)
    )
    if _read(written) != expected:
        lines = [f"{name}: host_key: {key}" for name, key in servers.items()]
        lines += [f"jump {name}: jump_host_key: {key}" for name, key in jumps.items()]
        raise BadInput(
            "the lab file leaves no place for what belongs under 'ssh' of one server:\n    "
            + "\n    ".join(lines),
            hint="A range or an alias stands for several: write the servers out one by one, or "
            "use --known-hosts.",
        )


def _vouched_for(server: Server, servers: Mapping[str, str], jumps: Mapping[str, str]) -> Server:
    host_key = servers.get(server.name, server.ssh.host_key)
    jump_host_key = jumps.get(server.ssh.jump or "", server.ssh.jump_host_key)
    return replace(server, ssh=replace(server.ssh, host_key=host_key, jump_host_key=jump_host_key))


def _read(text: str) -> Lab | None:
    try:
        return parse_lab(text)
    except FileError:
        return None


def _ssh_groups(root: yaml.Node | None) -> Iterator[yaml.MappingNode]:
    owners = [_values(root).get("defaults"), *_items(_values(root).get("servers"))]
    for owner in owners:
        ssh = _values(owner).get("ssh")
        if isinstance(ssh, yaml.MappingNode):
            yield ssh


def _put(group: yaml.MappingNode, key: str, value: str) -> _Change:
    """What to change so that a group that has at least one key says this."""
    there = _values(group).get(key)
    if there is not None:
        return there.start_mark.index, there.end_mark.index, value
    first_value = group.value[0][1]
    if group.flow_style:
        end = first_value.end_mark.index
        return end, end, f", {key}: {value}"
    # On a line of its own before the second key, or, where there is none, before the first.
    place = group.value[min(1, len(group.value) - 1)][0].start_mark
    return place.index, place.index, f"{key}: {value}\n{' ' * place.column}"


def _values(node: yaml.Node | None) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {_text(key): value for key, value in node.value}


def _items(node: yaml.Node | None) -> list[yaml.MappingNode]:
    found = node.value if isinstance(node, yaml.SequenceNode) else []
    return [item for item in found if isinstance(item, yaml.MappingNode)]


def _text(node: yaml.Node | None) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""
