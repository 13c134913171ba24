"""``python -m patchlight.controller``: the same as ``patchlight controller run``."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from patchlight.controller.changes.power_budget import DEFAULT_TOLERANCES, Tolerances
from patchlight.controller.changes.preflight import POWER_CEILING_DBM
from patchlight.controller.jobs.policy_set import DEFAULT_POLICIES, PolicyChoice
from patchlight.controller.parts import Controller, Settings
from patchlight.controller.service import run
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab import Lab
from patchlight.testbed.labfile.reader import load_lab


def serve(lab: Lab, settings: Settings) -> None:
    """Run a controller until it is told to stop; its log goes to standard error."""
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=form)
    for chatty in ("httpx", "httpcore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    asyncio.run(run(Controller(lab, settings)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, and say in a line what went wrong."""
    parser = argparse.ArgumentParser(prog="python -m patchlight.controller", description=__doc__)
    parser.add_argument("--lab", required=True, help="a lab file")
    parser.add_argument("--state", required=True, type=Path, help="where to keep state")
    parser.add_argument("--api", help="host:port of the REST API")
    parser.add_argument("--openflow", help="host:port that packet switches connect to")
    parser.add_argument("--openflow-netns", type=Path, help="namespace the speaker listens in")
    parser.add_argument("--engine", choices=["ryu", "os-ken"])
    parser.add_argument("--ryu-app", action="append", default=[], metavar="MODULE:CLASS")
    parser.add_argument("--power-ceiling", type=float, default=POWER_CEILING_DBM, metavar="DBM")
    parser.add_argument(
        "--loss-tolerance", type=float, metavar="DB", default=DEFAULT_TOLERANCES.budget_db
    )
    parser.add_argument(
        "--baseline-tolerance", type=float, metavar="DB", default=DEFAULT_TOLERANCES.baseline_db
    )
    for kind in ("placement", "order", "topology"):
        parser.add_argument(f"--{kind}", metavar="POLICY", default=getattr(DEFAULT_POLICIES, kind))
    parser.add_argument("--partition", metavar="POLICY")
    parser.add_argument(
        "--policy-deadline", type=float, metavar="SECONDS", default=DEFAULT_POLICIES.deadline_s
    )
    options = parser.parse_args(arguments)
    try:
        lab = load_lab(options.lab)
        serve(
            lab,
            Settings(
                state_dir=options.state,
                api=options.api or lab.controller_api,
                openflow=options.openflow or lab.controller_openflow,
                openflow_netns=options.openflow_netns,
                engine=options.engine,
                ryu_apps=options.ryu_app,
                token=os.environ.get("PATCHLIGHT_TOKEN"),
                power_ceiling_dbm=options.power_ceiling,
                tolerances=Tolerances(options.loss_tolerance, options.baseline_tolerance),
                policies=PolicyChoice(
                    options.placement,
                    options.order,
                    options.topology,
                    options.partition,
                    options.policy_deadline,
                ),
            ),
        )
    except PatchlightError as error:
        print(f"controller: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
