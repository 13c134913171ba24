"""What a worker leaves for its agent to read: its state and one line for each iteration."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any


class Journal:
    """Writes ``state.json`` (replaced whole) and ``reports.jsonl`` in the worker's folder."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._state: dict[str, Any] = {"state": "starting", "iterations_done": 0, "message": ""}
        self._reports = (directory / "reports.jsonl").open("a", encoding="utf-8")

    def state(self, state: str, message: str = "") -> None:
        """The worker's state from now on."""
        self._write({"state": state, "message": message})

    def iteration(self, report: dict[str, Any]) -> None:
        """One iteration is done and its sum was right."""
        self._reports.write(json.dumps(report) + "\n")
        self._reports.flush()
        self._write({"iterations_done": report["index"] + 1})

    def _write(self, changes: dict[str, Any]) -> None:
        with self._lock:
            self._state.update(changes)
            fresh = self._directory / "state.json.new"
            fresh.write_text(json.dumps(self._state), encoding="utf-8")
            os.replace(fresh, self._directory / "state.json")
