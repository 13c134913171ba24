"""What the agents of a lab say of themselves, asked at their sockets."""

from __future__ import annotations

import asyncio
from typing import Any

from patchlight.controller.fleet.fleet import Fleet
from patchlight.testbed.lab import Lab


def statuses(lab: Lab) -> list[dict[str, Any]]:
    async def ask() -> list[dict[str, Any]]:
        fleet = Fleet(lab)
        try:
            return [await client.status() for client in fleet.clients.values()]
        finally:
            await fleet.close()

    return asyncio.run(ask())
