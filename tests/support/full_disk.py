"""A store whose file may not grow, as on a full disk."""

from patchlight.controller.storage.database import Database


def limit_size(store: Database, pages: int | None = None) -> None:
    """Limit the file to so many pages, by default its size."""
    store.rows(
        f"PRAGMA max_page_count = {pages or store.rows('PRAGMA page_count')[0][0]}"
    )
