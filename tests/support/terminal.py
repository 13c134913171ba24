"""A command on a terminal, where somebody answers what it asks."""

import os
import pty
import subprocess
import sys
from collections.abc import Mapping


def at_terminal(
    answers: Mapping[str, str], *arguments: str
) -> tuple[int, str]:
    """Run ``patchlight``, and answer what it asks; its exit code, and all it shows.

    ``answers`` are by the end of each question, in the order that they are asked in.
    """
    ours, its = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "patchlight", *arguments],
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    ) as process:
        os.close(its)
        shown = b""
        asked_before = 0
        left = list(answers.items())
        while True:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # nobody holds the other end any more
                break
            if left and left[0][0].encode() in shown[asked_before:]:
                asked_before = len(shown)
                os.write(ours, f"{left.pop(0)[1]}\n".encode())
    os.close(ours)
    return process.returncode, shown.decode()
