"""All that can be said of one machine, wherever its facts come from."""

from collections.abc import Iterator

from patchlight.deploy.checks import gpus, nics, software
from patchlight.deploy.checks.finding import Finding
from patchlight.deploy.checks.software import Workers
from patchlight.deploy.facts import ServerFacts
from patchlight.testbed.lab.model import Server


def judge_machine(server: Server, facts: ServerFacts, workers: Workers) -> Iterator[Finding]:
    """What is there, and what of ``server`` in the lab file is not.

    What the lab file does not claim is only told, and its lack is never wrong.
    """
    yield from software.machine(server, facts)
    yield from software.docker(server, facts, workers)
    yield from software.bubblewrap(server, facts, workers)
    yield from gpus.gpus(server, facts)
    yield from nics.nics(server, facts)
