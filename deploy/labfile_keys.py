"""A lab file's text with the host keys of its servers in it."""

from collections.abc import Mapping
from dataclasses import replace

import yaml

from patchlight.testbed.errors import BadInput, FileError
from patchlight.testbed.lab.model import Server
from patchlight.testbed.labfile.reader import parse_lab, text_of
from patchlight.testbed.labfile.writer import Change, values_of, with_changes


def with_host_keys(text: str, servers: Mapping[str, str], jumps: Mapping[str, str]) -> str:
    """The text of a good lab file with the fingerprints of host keys in it.

    ``servers`` has them by server, ``jumps`` by the text of ``jump``. ``BadInput`` where the file
    is written in a way that leaves no place for one (a range stands for several servers).
    """
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
                changes.append(_put(server, "ssh", f"{{host_key: {fingerprint}}}"))
    for owner in (values_of(root).get("defaults"), *_items(values_of(root).get("servers"))):
        ssh = values_of(owner).get("ssh")
        fingerprint = jumps.get(text_of(values_of(ssh).get("jump")))
        if isinstance(ssh, yaml.MappingNode) and fingerprint is not None:
            changes.append(_put(ssh, "jump_host_key", fingerprint))
    written = with_changes(text, changes)
    before = parse_lab(text)
    expected = tuple(_vouched_for(server, servers, jumps) for server in before.servers)
    try:
        is_right = parse_lab(written) == before.with_changes(servers=expected)
    except FileError:
        is_right = False
    if not is_right:
        lines = [f"{name}: host_key: {key}" for name, key in servers.items()]
        lines += [f"jump {name}: jump_host_key: {key}" for name, key in jumps.items()]
        raise BadInput(
            "the lab file leaves no place for what belongs under 'ssh' of one server:\n    "
            + "\n    ".join(lines),
            hint="A range or an alias stands for several: write the servers out one by one, or "
            "use --known-hosts.",
        )
    return written


def _vouched_for(server: Server, servers: Mapping[str, str], jumps: Mapping[str, str]) -> Server:
    host_key = servers.get(server.name, server.ssh.host_key)
    jump_host_key = jumps.get(server.ssh.jump or "", server.ssh.jump_host_key)
    return replace(server, ssh=replace(server.ssh, host_key=host_key, jump_host_key=jump_host_key))


def _put(group: yaml.MappingNode, key: str, value: str) -> Change:
    """What to change so that a group that has at least one key says this."""
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
