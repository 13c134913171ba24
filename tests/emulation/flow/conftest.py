"""Where PipeDream's profiles lie: they are not part of the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def pipedream() -> Path:
    beside = Path(__file__).resolve().parents[4] / "shared" / "data"
    folder = Path(os.environ.get("PATCHLIGHT_DATA", beside)) / "pipedream"
    if not folder.is_dir():
        pytest.skip(f"no PipeDream profiles in {folder}: set PATCHLIGHT_DATA to their folder")
    return folder
