"""A binary heap of numbered items whose keys may change: what happens next, what is full first.

``keys[item]`` is an item's key, ``heap[:size]`` the items, and ``places[item]`` where in it an item
is, −1 if nowhere. Of equal keys the lower item comes first, so that runs are the same every time.
"""

from typing import Any

from patchlight.emulation.simulator.network.compiled import compiled


@compiled
def put(keys: Any, heap: Any, places: Any, size: int, item: int, key: float) -> int:
    """Put an item in, or give it another key; how many are in now."""
    keys[item] = key
    place = places[item]
    if place < 0:
        place = size
        size += 1
    # Up as far as it is sooner than what is above, then down as far as it is later.
    while place > 0:
        above = (place - 1) >> 1
        other = heap[above]
        if keys[other] < key or (keys[other] == key and other < item):
            break
        heap[place] = other
        places[other] = place
        place = above
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        other = heap[below]
        if below + 1 < size:
            right = heap[below + 1]
            if keys[right] < keys[other] or (keys[right] == keys[other] and right < other):
                below += 1
                other = right
        if key < keys[other] or (key == keys[other] and item < other):
            break
        heap[place] = other
        places[other] = place
        place = below
    heap[place] = item
    places[item] = place
    return size


@compiled
def drop(keys: Any, heap: Any, places: Any, size: int, item: int) -> int:
    """Take an item out if it is in; how many are left."""
    place = places[item]
    if place < 0:
        return size
    places[item] = -1
    size -= 1
    moved = heap[size]
    if moved != item:
        heap[place] = moved
        places[moved] = place
        put(keys, heap, places, size, moved, keys[moved])
    return size
