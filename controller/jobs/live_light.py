"""Light that moves under running jobs: brought together on request, or where it pays."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any

from patchlight.controller.changes.record import Reconfiguration
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.jobs.placement import LabView
from patchlight.controller.policies.contract import ClusterView
from patchlight.controller.policies.defragment import MINIMUM_GAIN_S, Proposal, defragment
from patchlight.controller.store import Store
from patchlight.testbed.portmap import PortMap

Look = Callable[[], Awaitable[Callable[[], LabView]]]


class LiveLight:
    """Defragments a lab: regroups running jobs by light alone, where that gains more than it costs.

    ``look`` looks at the devices, and then gives the lab as of when its answer is called.
    """

    def __init__(self, store: Store, transactions: Transactions, look: Look) -> None:
        self._store, self._transactions, self._look = store, transactions, look

    async def proposal(self, minimum_gain_s: float = MINIMUM_GAIN_S) -> Proposal | None:
        """The change that gains most; ``None`` where none gains so much."""
        return (await self._seen(minimum_gain_s))[1]

    async def _seen(self, minimum_gain_s: float) -> tuple[ClusterView, Proposal | None]:
        view = (await self._look())().view
        return view, await asyncio.to_thread(defragment, view, minimum_gain_s)

    async def defragment(self, minimum_gain_s: float = MINIMUM_GAIN_S) -> Reconfiguration | None:
        """Carry it out, at the end of an iteration of each job concerned; an event says so."""
        view, proposal = await self._seen(minimum_gain_s)
        if proposal is None:
            return None
        circuits = dict(view.circuits)

        def decide(maps: Mapping[str, PortMap]) -> Mapping[str, PortMap]:
            # Planned on other maps than these, it might gain nothing: then it is left.
            same = all(maps.get(ocs) == circuits.get(ocs) for ocs in proposal.maps)
            return proposal.maps if same else {}

        why = f"defragment {', '.join(proposal.jobs)}: {proposal.gain_s:.0f} s gained"
        change = await self._transactions.change(decide, why)
        event = {"reconfiguration": change.id, "state": change.state, **record_of(proposal)}
        self._store.add_event(time.time(), "defragmented", event)
        return change


def record_of(proposal: Proposal) -> dict[str, Any]:
    """A proposal for people and programs; circuits as ``ocs: inp>out``."""
    return {
        **asdict(proposal),
        "maps": {ocs: list(wanted.texts) for ocs, wanted in proposal.maps.items()},
        "gain_s": proposal.gain_s,
    }
