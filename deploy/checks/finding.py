"""What one check of one server came to."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of one server. ``ok`` is ``None`` where it cannot be told.

    ``found`` says what is there, ``remedy`` what to do where that is wrong.
    """

    server: str
    check: str
    ok: bool | None
    found: str
    remedy: str = ""

    @property
    def state(self) -> str:
        """``ok``, ``wrong`` or ``unknown``."""
        return {True: "ok", False: "wrong", None: "unknown"}[self.ok]
