"""Files of results, under sudo."""

import os
from collections.abc import Sequence
from pathlib import Path


def give_to_caller(paths: Sequence[Path]) -> None:
    """Under sudo, results belong to who called it, not to root."""
    owner, group = os.environ.get("SUDO_UID"), os.environ.get("SUDO_GID")
    if os.geteuid() == 0 and owner and group:
        for path in {*paths, *(p.parent for p in paths if p.parent.name == "results")}:
            os.chown(path, int(owner), int(group))
