"""One node that agrees on paths as a process of its own: asks for path after path, until killed.

Each line that it prints is a path: node, destination, channel, from when and until when at most,
in seconds of the machine's monotonic clock; or, ``dark`` and since when.
"""

import asyncio
import json
import random
import sys
import time

from patchlight.agents.path_node import LitPath, PathNode, PathNotGranted
from patchlight.testbed.paths.agreement import Bounds


async def main(
    number: int, addresses: list[str], bounds: Bounds, key: bytes
) -> None:
    def light(path: LitPath | None) -> None:
        now_s = time.monotonic()
        print(
            json.dumps(
                ["dark", number, now_s]
                if path is None
                else ["lit", number, *path, now_s]
            )
        )
        sys.stdout.flush()

    node = PathNode(number, bounds, addresses, key, light, retry_s=0.005)
    node.open()
    chance = random.Random(number)
    while True:
        others = [other for other in range(bounds.nodes) if other != number]
        try:
            async with node.path(chance.choice(others), patience_s=0.5):
                await asyncio.sleep(chance.random() * 0.02)  # it sends
        except PathNotGranted:
            continue


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    asyncio.run(
        main(
            told["number"],
            told["addresses"],
            Bounds(
                1, len(told["addresses"]), tuple(told["owners"]), 50_000, 5_000
            ),
            bytes.fromhex(told["key"]),
        )
    )
