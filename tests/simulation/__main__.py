"""Plays histories: ``python -m tests.simulation --seeds 1-100``, or replays one: ``--seed 4711``.

A replay writes the same bytes each time. Where a history fails, the steps that do not matter are
left out one by one (``--shrink``), and the shortest failing history is written as a page.
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from rich.progress import Progress

from tests.simulation.history import History, Step


def main() -> int:
    """Play, and return 1 if a judge found something."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="", metavar="A-B", help="play these histories")
    parser.add_argument("--seed", default="", metavar="N", help="replay one history")
    parser.add_argument("--output", type=Path, default=Path("build/history.txt"))
    parser.add_argument("--shrink", action="store_true", help="leave out steps without effect")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of texts have the same order in each process only then.
        arguments = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, "PYTHONHASHSEED": "0"})
    logging.basicConfig(handlers=[logging.NullHandler()])
    if options.seed:
        return _replay(options.seed, options.output, shrink=options.shrink)
    first, _, last = options.seeds.partition("-")
    return _play_all(range(int(first), int(last or first) + 1), options.processes)


def _play(seed: int) -> tuple[int, list[str], float, float]:
    began = time.process_time()
    history = History(seed)
    wrong = history.run()
    return seed, wrong, history.lasted_s, time.process_time() - began


def _play_all(seeds: Sequence[int], processes: int) -> int:
    failed = 0
    simulated_s = took_s = 0.0
    with ProcessPoolExecutor(processes) as pool, Progress() as progress:
        bar = progress.add_task("histories", total=len(seeds))
        for done in as_completed([pool.submit(_play, seed) for seed in seeds]):
            seed, wrong, lasted_s, cpu_s = done.result()
            simulated_s += lasted_s
            took_s += cpu_s
            failed += bool(wrong)
            if wrong:
                progress.console.print(f"seed {seed}: {'; '.join(wrong[:3])}", markup=False)
            progress.advance(bar)
    print(
        f"{len(seeds)} histories, {simulated_s / 3600:.1f} simulated hours, "
        f"{took_s:.0f} s of processor: {failed} failed"
    )
    return int(failed > 0)


def _replay(seed: str, output: Path, *, shrink: bool) -> int:
    number = int(seed) if seed.isdecimal() else seed
    history = History(number)
    wrong = history.run()
    if wrong and shrink:
        steps = shortest(number, history.steps)
        history = History(number, steps)
        wrong = history.run()
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("\n".join([*history.lines, ""]))
    print(f"{output}: {len(history.lines)} lines, {len(history.steps)} steps")
    print("\n".join(wrong) if wrong else "nothing wrong")
    return int(bool(wrong))


def shortest(seed: int | str, steps: Sequence[Step]) -> list[Step]:
    """The steps without those that the failure does not need: halves, quarters, … are left out
    while the judge still finds something (Zeller's delta debugging)."""
    left = list(steps)
    size = len(left) // 2
    while size:
        for fewer in _without(left, size):
            if History(seed, fewer).run():
                left = fewer
                break
        else:
            size //= 2
    return left


def _without(steps: Sequence[Step], size: int) -> Iterator[list[Step]]:
    for begin in range(0, len(steps), size):
        yield [*steps[:begin], *steps[begin + size :]]


if __name__ == "__main__":
    sys.exit(main())
