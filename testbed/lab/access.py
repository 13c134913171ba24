"""Access to a lab: roles on its controller, SSH of its servers, what workers may have of them."""

import re
from dataclasses import dataclass
from enum import IntEnum
from fnmatch import fnmatchcase
from typing import NamedTuple


class Role(IntEnum):
    """What somebody may do; each may do what those before it may, too.

    A ``viewer`` looks. A ``user`` submits jobs, and stops their own. An ``operator`` changes
    circuits, and everybody's jobs. An ``admin`` gives out tokens, reads the audit log, ends the
    controller, and has it run programs of theirs as policies.
    """

    NOBODY = 0
    VIEWER = 1
    USER = 2
    OPERATOR = 3
    ADMIN = 4

    def __str__(self) -> str:
        return self.name.lower()

    @classmethod
    def named(cls, name: str) -> "Role":
        """The role of that name in a file or a request."""
        return cls[name.upper()]


ROLES = tuple(str(role) for role in Role if role)
"""The names of the roles that somebody can be given."""


@dataclass(frozen=True)
class Access:
    """What users of the controller's machine may do, as the kernel says who they are.

    Root, whoever runs the controller, and who did so by ``sudo`` are admins. The others are what
    ``members`` says if they are in the ``group``, else what ``others`` says.
    """

    group: str = "patchlight"
    members: Role = Role.OPERATOR
    others: Role = Role.VIEWER


USUAL_ACCESS = Access()


_JUMP = re.compile(r"(?:(?P<user>[^@]+)@)?(?:\[(?P<v6>[^]]+)\]|(?P<host>[^:]+))(?::(?P<port>\d+))?")


class JumpHost(NamedTuple):
    """A host that connections go through; ``user`` is ``None`` where it is the server's."""

    host: str
    port: int
    user: str | None


@dataclass(frozen=True, slots=True)
class SshAccess:
    """Where a server's ``sshd`` answers, whom to log in as, and which host key it has.

    ``address`` is a host's name or address (``None``: the host of the agent's); ``user`` and
    ``identity`` (a private key's file) are left to the SSH client where they are ``None``;
    ``host_key`` is the fingerprint of the server's key (``SHA256:…``), ``None`` where
    ``known_hosts`` has it; ``legacy`` lets it have old algorithms. ``jump`` is a host to go
    through, ``[user@]host[:port]``, and ``jump_host_key`` the fingerprint of its key.
    """

    address: str | None = None
    port: int = 22
    user: str | None = None
    identity: str | None = None
    host_key: str | None = None
    jump: str | None = None
    jump_host_key: str | None = None
    legacy: bool = False

    @property
    def jump_host(self) -> JumpHost | None:
        """The host to go through, if there is one."""
        match = _JUMP.fullmatch(self.jump or "")
        if match is None:
            return None
        return JumpHost(match["v6"] or match["host"], int(match["port"] or 22), match["user"])


DYNAMIC = "dynamic"
"""As a worker's user: one for each person who submits jobs."""
WRITABLE = ":rw"
"""What a folder ends in that workers may write to."""


@dataclass(frozen=True, slots=True)
class WorkerPolicy:
    """``None``: no limit of the lab's.

    ``images`` are patterns (``pytorch/*``); an image of a worker has to fit one. What it mounts has
    to be in one of the folders ``mounts``, and what it writes, its checkpoint too, in one that ends
    in ``:rw``. ``memory_bytes`` and ``cpus`` are the most of a server's that one worker may have.
    ``user`` is whom workers run as: a user of the servers, or ``dynamic``, one for each person who
    submits jobs.
    """

    images: tuple[str, ...] | None = None
    mounts: tuple[str, ...] = ()
    memory_bytes: int | None = None
    cpus: float | None = None
    user: str = DYNAMIC

    def allows_image(self, image: str) -> bool:
        """Whether a container may be of it."""
        return self.images is None or any(fnmatchcase(image, each) for each in self.images)
