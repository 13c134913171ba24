"""What jobs' workers may have of a lab's servers: values, and what they refuse."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

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
