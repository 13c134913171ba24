"""What the agents of a lab say of themselves, asked at their sockets."""

from __future__ import annotations

import asyncio

from patchlight.controller.fleet.fleet import Fleet
from patchlight.testbed.lab import Lab
from patchlight.testbed.worker_api import AgentStatus


def statuses(lab: Lab) -> list[AgentStatus]:
    async def ask() -> list[AgentStatus]:
        fleet = Fleet(lab)
        try:
            return [await client.status() for client in fleet.clients.values()]
        finally:
            await fleet.close()

    return asyncio.run(ask())
