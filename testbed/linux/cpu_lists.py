"""CPUs as Linux lists them: ``0-15,32-47``."""

from collections.abc import Iterable


def cpus_of(text: str) -> frozenset[int]:
    """The numbers in a list; ``ValueError`` if it is none."""
    found = set[int]()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def cpu_list(cpus: Iterable[int]) -> str:
    """The list of these numbers, each for itself."""
    return ",".join(map(str, sorted(cpus)))
