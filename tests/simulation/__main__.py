"""Plays histories: ``python -m tests.simulation --seeds 1-100``, or replays one: ``--seed 4711``.

A replay writes the same bytes each time. Where a history fails, ``--shrink`` leaves out one by one
the steps that do not matter, and the shortest failing history is written as a page.
"""

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TimeRemainingColumn,
)

from tests.simulation.draw_lab import DRIVERS
from tests.simulation.history import History, Step, play
from tests.simulation.mutants import die_with_parent

_HISTORIES_EACH = 50
"""A process ends after so many, as its memory grows to that of the largest."""


def main() -> int:
    """Play, and return 1 if a judge found something."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description=__doc__
    )
    parser.add_argument(
        "--seeds", default="", metavar="A-B", help="play these histories"
    )
    parser.add_argument(
        "--seed", default="", metavar="N", help="replay one history"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("build/history.txt")
    )
    parser.add_argument(
        "--shrink", action="store_true", help="leave out steps without effect"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument(
        "--seconds",
        type=float,
        default=float("inf"),
        help="begin no history after this time",
    )
    parser.add_argument(
        "--driver",
        metavar="NAME",
        help="the one that all circuit switches have",
    )
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of texts have the same order in each process only then.
        arguments = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(
            sys.executable, arguments, {**os.environ, "PYTHONHASHSEED": "0"}
        )
    logging.basicConfig(handlers=[logging.NullHandler()])
    drivers = (options.driver,) if options.driver else DRIVERS
    if options.seed:
        return _replay(
            options.seed, drivers, options.output, shrink=options.shrink
        )
    first, _, last = options.seeds.partition("-")
    end = time.monotonic() + options.seconds
    seeds = range(int(first), int(last or first) + 1)
    return _play_all(seeds, drivers, options.processes, end)


def _play_all(
    seeds: Sequence[int], drivers: Sequence[str], processes: int, end: float
) -> int:
    played = []
    # Its processes have all modules when they begin.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["tests.simulation.history"])
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    one = partial(play, drivers=drivers, end=end)
    with (
        # concurrent.futures' pool may wait for ever for a process that has played its part:
        # https://github.com/python/cpython/issues/115634
        server.Pool(
            processes, die_with_parent, maxtasksperchild=_HISTORIES_EACH
        ) as pool,
        Progress("histories", *columns) as progress,
    ):
        bar = progress.add_task("histories", total=len(seeds))
        for each in pool.imap_unordered(one, seeds):
            progress.advance(bar)
            if each is None:
                continue
            played.append(each)
            if each.wrong:
                words = "; ".join(each.wrong[:3])
                replay = f"make history SEED={each.seed}"
                progress.console.print(
                    f"{replay}: {words}", markup=False, soft_wrap=True
                )
    kinds = Counter[str]()
    devices = Counter[str]()
    for each in played:
        kinds += each.kinds
        devices += each.drivers
    failed = sum(bool(each.wrong) for each in played)
    print(
        f"{len(played)} histories of seeds {seeds[0]} to {seeds[-1]}, {kinds.total()} events, "
        f"{sum(each.lasted_s for each in played) / 3600:.1f} simulated hours, "
        f"{sum(each.cpu_s for each in played):.0f} s of processor: {failed} failed"
    )
    for what, seen in (("events", kinds), ("drivers", devices)):
        print(
            f"{what}: {', '.join(f'{name} {count}' for name, count in sorted(seen.items()))}"
        )
    return int(failed > 0)


def _replay(
    seed: str, drivers: Sequence[str], output: Path, *, shrink: bool
) -> int:
    number = int(seed) if seed.isdecimal() else seed
    history = History(number, drivers=drivers)
    wrong = history.run()
    if wrong and shrink:
        steps = shortest(number, history.steps, drivers)
        history = History(number, steps, drivers=drivers)
        wrong = history.run()
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("\n".join([*history.page(), ""]))
    print(f"{output}: {len(history.lines)} lines, {len(history.steps)} steps")
    print("\n".join(wrong) if wrong else "nothing wrong")
    return int(bool(wrong))


def shortest(
    seed: int | str, steps: Sequence[Step], drivers: Sequence[str] = DRIVERS
) -> list[Step]:
    """The steps without those that the failure does not need: halves, quarters, … are left out
    while the judge still finds something (Zeller's delta debugging)."""
    left = list(steps)
    size = len(left) // 2
    while size:
        for fewer in _without(left, size):
            if History(seed, fewer, drivers=drivers).run():
                left = fewer
                break
        else:
            size //= 2
    return left


def _without(steps: Sequence[Step], size: int) -> Iterator[list[Step]]:
    for begin in range(0, len(steps), size):
        yield [*steps[:begin], *steps[begin + size :]]


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # What is left of a world is not cleared up: its disk, network and clock are gone.
    os._exit(code)
