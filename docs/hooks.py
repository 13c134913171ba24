"""What mkdocs does beside turning pages into HTML."""

from __future__ import annotations

import re
from pkgutil import resolve_name
from typing import Any

from mkdocs.exceptions import PluginError

# What a page asks for with a comment, and the function that writes it.
GENERATED = {
    "<!-- lab file reference -->": "patchlight.testbed.labfile.reference:lab_file_reference",
    "<!-- table of drivers -->": "patchlight.testbed.ocs_drivers:drivers_table",
}
# What a browser would fetch by itself: a link to click on is none of these.
FETCHED = re.compile(
    r'<(?:script|img|iframe)[^>]* src="https?:'
    r'|<link[^>]* rel="(?:stylesheet|preconnect)"[^>]* href="https?:'
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put what the code says of itself where the page asks for it."""
    for comment, function in GENERATED.items():
        if comment in markdown:
            try:
                text = resolve_name(function)()
            except ModuleNotFoundError:
                text = f"*(`{function}` is not part of this version.)*"
            markdown = markdown.replace(comment, text)
    return markdown


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that would fetch something from another machine: the site works offline."""
    if fetched := FETCHED.search(output):
        raise PluginError(f"{page.file.src_path} fetches from another machine: {fetched[0]}")
    return output
