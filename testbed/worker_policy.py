"""What jobs' workers may have of a lab's servers: values, and what they refuse."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

DYNAMIC = "dynamic"
"""As a worker's user: one for each person who submits jobs."""


@dataclass(frozen=True, slots=True)
class WorkerPolicy:
    """``None``: no limit of the lab's.

    ``images`` are patterns (``pytorch/*``); an image of a worker has to fit one. What it mounts,
    and its checkpoint, have to be in one of the folders ``mounts``. ``memory_bytes`` and ``cpus``
    are the most of a server's that one worker may have. ``user`` is whom workers that are processes
    run as: a user of the servers, or ``dynamic``, one for each person who submits jobs.
    """

    images: tuple[str, ...] | None = None
    mounts: tuple[str, ...] | None = None
    memory_bytes: int | None = None
    cpus: float | None = None
    user: str = DYNAMIC

    def allows_image(self, image: str) -> bool:
        """Whether a container may be of it."""
        return self.images is None or any(fnmatchcase(image, each) for each in self.images)
