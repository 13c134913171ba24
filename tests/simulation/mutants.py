"""Faults planted in the real code, one at a time, which histories must find.

``python -m tests.simulation.mutants`` plants each of ``mutants.toml`` and plays histories until the
judge finds something. ``make mutants`` does so for all of them.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.abc
import importlib.machinery
import logging
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

TABLE = Path(__file__).with_name("mutants.toml")


@dataclass(frozen=True)
class Mutant:
    """One fault: in this module, ``was`` is replaced by ``now``."""

    name: str
    module: str
    fault: str
    was: str
    now: str

    def applied(self, source: str | None) -> str:
        """The module's source with the fault; ``ValueError`` unless it fits in one place. Where
        the source breaks its lines, and ends lists with commas, does not matter."""
        words = (
            (r",?\s*" if word in ")]}" else "") + re.escape(word)
            for word in re.findall(r"\w+|[^\w\s]", self.was)
        )
        made, count = re.subn(
            r"(?<!\w)" + r"\s*".join(words),
            lambda _: self.now.strip(),
            source or "",
        )
        if count != 1:
            raise ValueError(
                f"{self.name} does not fit in one place of {self.module}"
            )
        return made


def mutants() -> dict[str, Mutant]:
    """All of them, by name."""
    rows = tomllib.loads(TABLE.read_text())["mutant"]
    return {row["name"]: Mutant(**row) for row in rows}


class _Loader(importlib.machinery.SourceFileLoader):
    mutant: Mutant

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_source(fullname)
        return compile(
            self.mutant.applied(source), self.path, "exec", dont_inherit=True
        )


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self._mutant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(fullname, spec.origin)
        spec.loader.mutant = self._mutant
        return spec


def find(mutant: Mutant, seeds: Sequence[int]) -> str:
    """Plant it in this process and play until the judge finds it; what was found, if it was."""
    sys.meta_path.insert(0, _Finder(mutant))
    from tests.simulation.history import History

    if mutant.module not in sys.modules:
        raise ValueError(f"{mutant.name}: no history imports {mutant.module}")
    for count, seed in enumerate(seeds, start=1):
        if wrong := History(seed).run():
            return f"history {count}: {wrong[0]}"
    return ""


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies, even by SIGKILL."""
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _find_elsewhere(name: str, seeds: str) -> str:
    """The same in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "tests.simulation.mutants",
        "--plant",
        name,
        "--seeds",
        seeds,
    ]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        return f"could not be planted: {done.stderr.strip().splitlines()[-1]}"
    found = done.stdout.strip()
    print(f"{name}: {found or 'NOT FOUND'}", flush=True)
    return found


def main() -> int:
    """Return 1 if a mutant was not found."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.mutants", description=__doc__
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="only these; else all"
    )
    parser.add_argument("--seeds", default="1-500", metavar="A-B")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--plant", metavar="NAME", help="play in this process")
    options = parser.parse_args()
    known = mutants()
    if options.plant:
        die_with_parent()
        logging.basicConfig(level=logging.CRITICAL)
        first, _, last = options.seeds.partition("-")
        found = find(
            known[options.plant], range(int(first), int(last or first) + 1)
        )
        print(found)
        return int(not found)
    names = options.names or list(known)
    with ThreadPoolExecutor(options.processes) as pool:
        results = list(
            pool.map(lambda name: _find_elsewhere(name, options.seeds), names)
        )
    missed = [
        name for name, found in zip(names, results, strict=True) if not found
    ]
    print(f"{len(names) - len(missed)} of {len(names)} found")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
