"""Reads the TLS certificates of a lab's programs, and takes rights away from workers.

``ca.pem`` is the certificate of the lab's authority, ``cert.pem`` the program's own with its name
in the lab, ``key.pem`` the key that goes with it. Names have nothing to do with addresses.
"""

import ctypes
import errno
import functools
import os
import socket
import ssl
import stat
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from patchlight.testbed.errors import BadInput, PatchlightError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, ObjectIdentifier


# ``cryptography`` is imported where it is used: agents on Unix sockets need the names only.

CA_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.pem", "cert.pem", "key.pem"
_ANEW = "make it with 'patchlight deploy certificates LAB --output DIR'"


def agent_name(server: str, lab: str) -> str:
    """The name in the certificate of a server's agent."""
    return f"agent.{server}.{lab}"


def controller_name(lab: str) -> str:
    """The name in the certificate of a lab's controller."""
    return f"controller.{lab}"


def switch_name(switch: str, lab: str) -> str:
    """The name in the certificate of a packet switch."""
    return f"switch.{switch}.{lab}"


def switches_name(lab: str) -> str:
    """The name for any packet switch of the lab: of a machine that is several of them."""
    return f"switches.{lab}"


def prometheus_name(lab: str) -> str:
    """The name of the client that may read the agents' metrics, and nothing else."""
    return f"prometheus.{lab}"


@dataclass(frozen=True, slots=True)
class Credentials:
    """The contents of such a folder. ``fingerprint``: the certificate's SHA-256 in hex.

    ``serves``: whether it is a server's certificate; else it is a client's.
    """

    folder: Path
    name: str
    fingerprint: str
    not_before: datetime
    not_after: datetime
    serves: bool = True

    def check(self, name: str, now: datetime | None = None) -> None:
        """``BadInput`` unless the certificate is for this name and valid now."""
        when = now or datetime.now(UTC)
        if self.name != name:
            raise BadInput(
                f"the certificate in {self.folder} is for {self.name}: expected {name}",
                hint="name the folder that was made for it",
            )
        if when > self.not_after:
            raise BadInput(
                f"the certificate in {self.folder} ended on {self.not_after:%Y-%m-%d %H:%M} UTC",
                hint="renew it with 'patchlight deploy certificates LAB --output DIR'",
            )
        if when < self.not_before:
            raise BadInput(
                f"the certificate in {self.folder} begins on {self.not_before:%Y-%m-%d %H:%M} UTC",
                hint=f"set this machine's clock: it says {when:%Y-%m-%d %H:%M} UTC",
            )

    def load_into(self, context: ssl.SSLContext) -> None:
        """Have new connections of a context show this certificate and trust this authority."""
        context.load_verify_locations(self.folder / CA_FILE)
        context.load_cert_chain(self.folder / CERTIFICATE_FILE, self.folder / KEY_FILE)

    def context(self, *, server: bool) -> ssl.SSLContext:
        """A ``new_context`` with this certificate and authority."""
        context = new_context(server=server)
        self.load_into(context)
        return context


def new_context(*, server: bool) -> ssl.SSLContext:
    """TLS 1.3 with a certificate at both ends; it trusts no authority yet.

    A client also checks that the server is called what it expects (``server_hostname``).
    """
    # Not the default context: reading all of the machine's authorities takes 20 ms, seconds for
    # hundreds of servers, and none of them has a say here.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def stamp(folder: Path) -> tuple[int, ...]:
    """Numbers that change each time a file of the folder is written; none without files."""
    files = (folder / name for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE))
    return tuple(file.stat().st_mtime_ns for file in files if file.exists())


def read_credentials(folder: Path) -> Credentials:
    """The contents of the folder, also if they have expired.

    ``BadInput`` if a file is missing or not of its kind, if other users may read the key, or
    if key, certificate and authority do not match.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    mode = stat.S_IMODE((folder / KEY_FILE).stat().st_mode) if _read(folder, KEY_FILE) else 0
    if mode & 0o077:
        raise BadInput(
            f"other users may read or change the key {folder / KEY_FILE} (mode {mode:04o})",
            hint=f"chmod 600 {folder / KEY_FILE}; if somebody may have seen it, issue it anew: "
            "'patchlight deploy certificates LAB --output DIR --anew'",
        )
    own = _certificate(folder, CERTIFICATE_FILE)
    try:
        key = load_pem_private_key(_read(folder, KEY_FILE), None)
    except (ValueError, TypeError) as error:
        raise BadInput(f"{folder / KEY_FILE} is no private key in PEM", hint=_ANEW) from error
    if key.public_key() != own.public_key():
        raise BadInput(f"key and certificate in {folder} do not go together", hint=_ANEW)
    try:
        own.verify_directly_issued_by(_certificate(folder, CA_FILE))
    except (InvalidSignature, ValueError, TypeError) as error:
        raise BadInput(
            f"the certificate in {folder} is not of the authority in its {CA_FILE}", hint=_ANEW
        ) from error
    return Credentials(
        folder,
        name_in(own),
        own.fingerprint(SHA256()).hex(),
        own.not_valid_before_utc,
        own.not_valid_after_utc,
        ExtendedKeyUsageOID.SERVER_AUTH in usages_in(own),
    )


def usages_in(certificate: "Certificate") -> list["ObjectIdentifier"]:
    """What a certificate may be used for; nothing if it does not say."""
    from cryptography import x509

    try:
        return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        return []


def name_in(certificate: "Certificate") -> str:
    """The name that a certificate is for; empty if it has none."""
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ""
    return next(iter(names.get_values_for_type(x509.DNSName)), "")


def _certificate(folder: Path, file: str) -> "Certificate":
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(_read(folder, file))
    except ValueError as error:
        raise BadInput(f"{folder / file} is no certificate in PEM", hint=_ANEW) from error


def _read(folder: Path, file: str) -> bytes:
    try:
        return (folder / file).read_bytes()
    except OSError as error:
        raise BadInput(f"reading {folder / file}: {error.strerror}", hint=_ANEW) from error


_SET_DUMPABLE, _DROP_BOUND, _NO_NEW_PRIVILEGES = 4, 24, 38
_VERSION_3 = 0x20080522
# As Docker's own profile has it: all that needs a capability that no worker has anyway, or that
# has let programs out of their namespaces before. io_uring would pass by what is refused here.
_REFUSED = (
    *("mount", "umount", "umount2", "pivot_root", "fsopen", "fsconfig", "fsmount", "fspick"),
    *("move_mount", "open_tree", "mount_setattr", "unshare", "setns", "bpf", "perf_event_open"),
    *("keyctl", "add_key", "request_key", "userfaultfd", "kexec_load", "kexec_file_load"),
    *("init_module", "finit_module", "delete_module", "create_module", "query_module"),
    *("open_by_handle_at", "io_uring_setup", "io_uring_enter", "io_uring_register", "iopl"),
    *("ioperm", "reboot", "swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "settimeofday"),
    *("clock_settime", "clock_adjtime", "adjtimex", "stime", "vhangup", "nfsservctl", "uselib"),
    *("lookup_dcookie", "kcmp", "syslog", "sysfs", "ustat", "fanotify_init", "modify_ldt"),
)
_NAMESPACE_FLAGS = 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x20000
_PERSONALITY_NOW = 0xFFFFFFFF
_FAMILIES = 64
_FAMILIES_OF_WORKERS = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
_libc = ctypes.CDLL(None, use_errno=True)


class RightsKept(PatchlightError):
    """The kernel would not take a right away."""


def give_up(uid: int, gid: int) -> None:
    """Be this user, without other groups and capabilities, and without a way to get any.

    As ``setpriv --reuid --regid --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all``
    before a program: root is left without capabilities, too. ``RightsKept`` if any of it fails.
    """
    try:
        with open("/proc/sys/kernel/cap_last_cap") as file:
            last = int(file.read())
        for capability in range(last + 1):
            _prctl(_DROP_BOUND, capability)
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
        none = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable, 2 x 32 of each
        if _libc.capset(header, none):
            raise OSError(ctypes.get_errno(), "capset")
        _prctl(_NO_NEW_PRIVILEGES, 1)
        # As after the start of a program: its own files in /proc are this user's.
        _prctl(_SET_DUMPABLE, 1)
    except OSError as error:
        raise RightsKept(f"giving up rights: {os.strerror(error.errno or 0)}") from error


@functools.cache
def refused_calls() -> bytes:
    """A seccomp filter, as the kernel reads it, that refuses what no worker needs.

    ``RuntimeError`` or ``OSError`` where libseccomp is not there or too old.
    """
    import pyseccomp as seccomp

    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    no = seccomp.ERRNO(errno.EPERM)
    for name in _REFUSED:
        rules.add_rule(no, name)
    for flag in _NAMESPACE_FLAGS:
        rules.add_rule(no, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, flag, flag))
    # Its flags are in memory, where no filter looks: the C library takes clone instead.
    rules.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    # Most others know no network namespaces, or have the kernel load code: vsock, Bluetooth, ALG.
    for family in {*range(_FAMILIES)} - _FAMILIES_OF_WORKERS:
        rules.add_rule(no, "socket", seccomp.Arg(0, seccomp.EQ, family))
    rules.add_rule(no, "socket", seccomp.Arg(0, seccomp.GE, _FAMILIES))
    rules.add_rule(no, "personality", seccomp.Arg(0, seccomp.NE, _PERSONALITY_NOW))
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero):
        raise OSError(ctypes.get_errno(), "prctl")
