"""The OFC 2022 experiment as a user runs it: how near the paper's reductions it comes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from patchlight.testbed.errors import PatchlightError


def run() -> list[dict[str, Any]]:
    """One run of all cases, 12 iterations; a figure for each target of the experiment."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "patchlight", "experiment", "ofc2022"]
        done = subprocess.run(
            [*command, "--name", "bench-ofc2022", "--workers", "process", "--output", folder],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise PatchlightError(f"the experiment failed:\n{done.stdout}{done.stderr}")
        result = json.loads((Path(folder) / "result.json").read_text())
    return [
        {
            "name": f"ofc2022 {target['name']}",
            "value": target["measured"],
            "unit": "s" if target["name"].endswith("_s") else "",
            "asked": target["asked"],
        }
        for target in result["targets"]
    ]
