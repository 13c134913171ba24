"""The light of one emulated lab: ``python -m patchlight.emulation.light --lab LAB --socket …``."""

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

from patchlight.emulation.fabric.plan import light_namespace
from patchlight.emulation.light.emulated_light import EmulatedLight
from patchlight.emulation.light.fibres import KernelFibres
from patchlight.emulation.light.serving import LightRequests
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile.reader import read_lab
from patchlight.testbed.linux.namespaces import namespace_path


def main() -> int:
    """Run it until it is told to stop; the exit code says how it ended."""
    parser = argparse.ArgumentParser(
        prog="python -m patchlight.emulation.light", description=__doc__
    )
    parser.add_argument("--lab", required=True, type=Path, metavar="FILE")
    parser.add_argument("--socket", required=True, type=Path, metavar="PATH")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    try:
        asyncio.run(_run(read_lab(options.lab), options.socket))
    except PatchlightError as error:
        print(f"emulated light: {error}", file=sys.stderr)
        return error.exit_code
    return 0


async def _run(lab: Lab, path: Path) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    fibres = KernelFibres(lab, namespace_path(light_namespace(lab.name)))
    # Before the first look, so that no change is missed after it.
    changes = fibres.changes()
    requests = LightRequests(EmulatedLight(lab, fibres))
    requests.watch(changes)
    server = await requests.listen(path)
    await stop.wait()
    server.close()
    fibres.close()


if __name__ == "__main__":
    sys.exit(main())
