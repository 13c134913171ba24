"""Keys of a rehearsal are what OpenSSH's files have, and nobody else can read them."""

from ipaddress import IPv4Address
from pathlib import Path

import paramiko

from patchlight.emulation.servers.server import new_key, write_client_files


def test_what_a_client_needs_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "ssh"
    identity = new_key()
    host_key = new_key()
    address = IPv4Address("198.18.0.11")
    write_client_files(
        folder, "admin", identity, {"server1": (address, host_key)}
    )
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "identity").stat().st_mode & 0o777 == 0o600
    read = paramiko.Ed25519Key.from_private_key_file(str(folder / "identity"))
    assert f"ssh-ed25519 {read.get_base64()}" == identity.public
    assert read.fingerprint == identity.fingerprint
    known = paramiko.HostKeys(str(folder / "known_hosts"))
    for name in ("server1", str(address)):
        assert (
            known[name]["ssh-ed25519"].get_base64()
            == host_key.public.split()[1]
        )
    config = paramiko.SSHConfig.from_path(str(folder / "config"))
    found = config.lookup("server1")
    assert (found["hostname"], found["user"]) == (str(address), "admin")
    assert list(found["identityfile"]) == [str(folder / "identity")]
    assert found["stricthostkeychecking"] == "yes"
    assert "user" not in config.lookup("elsewhere")
