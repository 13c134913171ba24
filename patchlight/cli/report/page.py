"""A report as one HTML page that loads nothing."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from patchlight.cli.report import charts
from patchlight.cli.report.period import Period
from patchlight.console.rendering import harmless, span, when
from patchlight.testbed.units import format_time

MOST_EVENTS = 500

_PAGE = Path(__file__).with_name("page.html.j2")


def as_page(period: Period) -> str:
    """The page. Text of users and devices is text: it is never read as HTML."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"when": when, "span": span, "shown": harmless, "took": _took}
    pictures = {
        "timeline": charts.timeline(period) if period.jobs else None,
        "utilization": charts.utilization(period),
        "throughput": charts.throughput(period),
    }
    return environment.from_string(_PAGE.read_text(encoding="utf-8")).render(
        period=period,
        stages=period.stages(),
        made_at=time.time(),
        most_jobs=charts.MOST_JOBS,
        most_events=MOST_EVENTS,
        counts=_counts,
        words_of=_words_of,
        # Drawn here, with texts escaped.
        **{name: drawn and Markup(drawn) for name, drawn in pictures.items()},
    )


def _took(seconds: float) -> str:
    return format_time(float(f"{seconds:.3g}"))


def _counts(counts: Mapping[str, int]) -> str:
    words = ", ".join(f"{count} {state}" for state, count in counts.items())
    return f": {words}" if words else ""


def _words_of(event: Mapping[str, Any]) -> str:
    """An event's own words, else all that it says."""
    ocs = f"{event['ocs']}: " if event.get("ocs") else ""
    words = event.get("message") or event.get("words")
    if not words:
        rest = {k: v for k, v in event.items() if k not in ("at", "kind", "number", "ocs") and v}
        words = json.dumps(rest, ensure_ascii=False) if rest else ""
    return harmless(f"{ocs}{words}")
