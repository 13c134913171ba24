"""The OFC 2022 experiment as a user runs it: how near the paper's reductions it comes."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import figure
from patchlight.testbed.errors import PatchlightError

# How near to the paper's reduction it is to come, in shares of one.
_REDUCTION_TOLERANCE = 0.04
# A live change may cost the running job one iteration of the old network and this much more.
_LIVE_SLACK_S = 1.0


def run() -> list[dict[str, Any]]:
    """One run of all cases, 12 iterations; the figures that the paper has, and the longest gap."""
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
    cases, live = result["cases"], result["live"]
    limit_s = cases["a"]["static"]["iteration_s"] + _LIVE_SLACK_S
    figures = [
        figure(
            f"ofc2022 {each['name']}",
            each["measured"],
            "",
            f"{100 * each['paper']:.1f} ± {100 * _REDUCTION_TOLERANCE:.0f} points"
            if each["name"].endswith("reduction")
            # No limit: what the paper says of utilisation no model of its times agrees with.
            else None,
        )
        for each in result["comparisons"]
    ]
    limit = f"at most {limit_s:.2f} s (a static iteration + {_LIVE_SLACK_S:g} s)"
    return [*figures, figure("ofc2022 live.longest_gap_s", live["longest_gap_s"], "s", limit)]
