"""The report as one HTML page that needs nothing beside it: plots and all."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from patchlight.emulation.experiments.ofc2022.paper import PHYSICS, SOURCE, STANDING

_CAPTIONS = {
    "completion.png": "Completion time of the first job as a share of the static network's.",
    "case-a.png": "Case (a): a job of four GPUs beside one of two. What each worker's switch port "
    "counted and how busy its GPU was, second by second; the dotted line is the first job's end.",
    "case-b.png": "Case (b): two jobs of three GPUs.",
    "live.png": "Case (a), started static and regrouped half way while it trained. Light "
    "green: the jobs finish the iteration they are in; dark green: the light is switched.",
}
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #1a1a1a; background: #fff; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { text-align: left; padding: .3rem .8rem; border-bottom: 1px solid #ddd; }
figure { margin: 2rem 0; } img { max-width: 100%; } figcaption { color: #555; }
"""


def page(result: dict[str, Any], rows: Sequence[Sequence[str]], plots: Sequence[Path]) -> str:
    """The whole page as text."""
    machine = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
    stages = result.get("reconfiguration", {}).get("stages_s", {})
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>Patchlight: OFC 2022</title><style>{_STYLE}</style></head><body>",
        "<h1>Training on a network rewired with light</h1>",
        f"<p>The experiment of {escape(SOURCE)}, run with packets on "
        f"lab {escape(result['lab'])} on {escape(result['started_at'])}. "
        f"OpenFlow engine: {escape(result['engine'])}. Workers: {escape(result['workers'])}. "
        f"Rates, bytes and TCP windows are those of the lab divided by {result['scale']:g}, times "
        f"are not; all figures here are the lab's. Machine: {escape(machine)}.</p>",
        _table(("case", "first job", "paper", "measured", "difference"), rows),
        f"<p>{escape(PHYSICS)}</p><p>{escape(STANDING)}</p>",
        *(_figure(plot) for plot in plots),
    ]
    if stages:
        spent = [(name, f"{1000 * seconds:.0f} ms") for name, seconds in stages.items()]
        parts += [
            "<h2>Where the reconfiguration's time went</h2>",
            _table(("stage", "time"), spent),
        ]
    return "\n".join([*parts, "</body></html>", ""])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["<table><tr>", *(f"<th>{escape(text)}</th>" for text in head), "</tr>"]
    lines += [f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows]
    return "".join([*lines, "</table>"])


def _figure(plot: Path) -> str:
    data = base64.b64encode(plot.read_bytes()).decode()
    caption = escape(_CAPTIONS.get(plot.name, plot.stem))
    return (
        f"<figure><img alt='{caption}' src='data:image/png;base64,{data}'>"
        f"<figcaption>{caption}</figcaption></figure>"
    )
