"""Checks of a figure as a journal would make them, on its SVG."""

import re
from pathlib import Path


def for_a_paper(svg: Path) -> str:
    """The figure's texts, once it has a column's width, text of 8 pt or more, and one legend."""
    drawn = svg.read_text(encoding="utf-8")
    width = re.search(r'<svg [^>]*\bwidth="([\d.]+)pt"', drawn)
    assert width is not None
    assert float(width[1]) / 72 in (3.5, 7.0)
    # A unit of the drawing is a point.
    assert f'viewBox="0 0 {width[1]} ' in drawn
    sizes = [
        float(size)
        for size in re.findall(r"font(?:-size)?: (?:\w+ )*([\d.]+)px", drawn)
    ]
    assert sizes
    assert min(sizes) >= 8
    assert len(re.findall(r'id="legend_', drawn)) <= 1
    return "\n".join(re.findall(r"<text[^>]*>([^<]*)<", drawn))
