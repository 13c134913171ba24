"""What mkdocs does beside turning pages into HTML."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

LAB_FILE_REFERENCE = "<!-- lab file reference -->"
# What a browser would fetch by itself: a link to click on is none of these.
FETCHED = re.compile(
    r'<(?:script|img|iframe)[^>]* src="https?:'
    r'|<link[^>]* rel="(?:stylesheet|preconnect)"[^>]* href="https?:'
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the reference that the lab file's schema writes where the page asks for it."""
    if LAB_FILE_REFERENCE not in markdown:
        return markdown
    try:
        reference = import_module("patchlight.testbed.labfile.reference").lab_file_reference()
    except ModuleNotFoundError:
        example = Path(__file__).parents[1] / "testbed" / "labs" / "ofc2022.yaml"
        reference = f"The built-in lab `ofc2022`:\n\n```yaml\n{example.read_text()}```\n"
    return markdown.replace(LAB_FILE_REFERENCE, reference)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that would fetch something from another machine: the site works offline."""
    if fetched := FETCHED.search(output):
        raise PluginError(f"{page.file.src_path} fetches from another machine: {fetched[0]}")
    return output
