"""Metric families from rows, as text: for what is looked up when somebody scrapes.

A lab has thousands of these lines, and the client library takes some 15 µs for each: too long
for a controller that has jobs to watch. Its own instruments are still written by the library.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Rows = Iterable[tuple[Sequence[str], float]]
"""Values by the values of their labels."""


@dataclass(frozen=True)
class Family:
    """A metric of this ``name`` (of counters without ``_total``), what it is, and its rows."""

    name: str
    kind: Literal["gauge", "counter"]
    about: str
    labels: Sequence[str]
    rows: Rows

    def as_text(self, *, openmetrics: bool) -> str:
        """Its lines, in OpenMetrics or in Prometheus's own format."""
        sample = f"{self.name}_total" if self.kind == "counter" else self.name
        family = self.name if openmetrics else sample
        lines = [f"# HELP {family} {self.about}\n# TYPE {family} {self.kind}\n"]
        before = [f'{label}="' for label in self.labels]
        for values, value in self.rows:
            pairs = [
                f'{start}{_escaped(said)}"' for start, said in zip(before, values, strict=True)
            ]
            lines.append(f"{sample}{{{','.join(pairs)}}} {float(value)!r}\n")
        return "".join(lines)


def _escaped(said: str) -> str:
    if "\\" in said or '"' in said or "\n" in said:
        return said.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return said


def gauge(name: str, about: str, labels: Sequence[str], rows: Rows) -> Family:
    """What is so now; ``name`` without the ``patchlight_`` that all have."""
    return Family(f"patchlight_{name}", "gauge", about, labels, rows)


def counter(name: str, about: str, labels: Sequence[str], rows: Rows) -> Family:
    """What only grows, but for restarts; ``name`` is without ``_total`` at its end."""
    return Family(f"patchlight_{name}", "counter", about, labels, rows)


def single(name: str, about: str, value: float) -> Family:
    """One value that is so now."""
    return gauge(name, about, (), [((), value)])


def by_name(values: Mapping[str, float]) -> Rows:
    """Rows of a family with one label."""
    return (((name,), value) for name, value in values.items())
