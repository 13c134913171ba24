"""What a worker of a chosen job prints, as it prints it."""

import asyncio
from collections.abc import Mapping
from functools import partial

from nicegui import run, ui

from patchlight.cli.dashboard.watching import EVERY_S
from patchlight.client.client import ControllerClient
from patchlight.console.rendering import harmless
from patchlight.testbed.errors import PatchlightError

_LINES = 500


class JobOutput:
    """The choice of a job and a worker, and the end of what that one printed."""

    def __init__(self, client: ControllerClient) -> None:
        self._client = client
        with ui.row().classes("items-center gap-2 mt-2"):
            ui.label("Output of").classes("font-bold")
            self._job = ui.select([], on_change=self._follow_another, label="job")
            self._worker = ui.number("worker", value=0, min=0, on_change=self._follow_another)
            self._job.props('dense options-dense aria-label="Output of job"').classes("w-64")
            self._worker.props("dense").classes("w-24")
        self._log = ui.log(max_lines=_LINES).classes("w-full h-64").props("role=log")
        self._next_byte, self._asking = 0, asyncio.Lock()
        ui.timer(2 * EVERY_S, self._follow)

    def offer(self, names: Mapping[str, str]) -> None:
        """Let one of these jobs be chosen: by id, what each is called."""
        if self._job.options != names:
            kept = self._job.value if self._job.value in names else next(iter(names), None)
            self._job.set_options(dict(names), value=kept)

    def _follow_another(self) -> None:
        self._log.clear()
        self._next_byte = 0

    async def _follow(self) -> None:
        job, worker = self._job.value, int(self._worker.value or 0)
        if not job or self._asking.locked():
            return
        async with self._asking:
            after = self._next_byte
            try:
                part = await run.io_bound(partial(self._client.log, job, worker, after))
            except PatchlightError as error:
                if not after:
                    self._log.clear()
                    self._log.push(error.message)
                return
            unchanged = (job, worker, after) == (
                self._job.value,
                int(self._worker.value or 0),
                self._next_byte,
            )
            if part is not None and unchanged and part["text"]:
                self._next_byte = int(part["next"])
                self._log.push(harmless(part["text"], keep="\n\t"))
