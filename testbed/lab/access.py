"""Who may do what with a lab's controller: roles, and which of them this machine's users have."""

from dataclasses import dataclass
from enum import IntEnum


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
