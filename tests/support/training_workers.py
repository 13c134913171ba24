"""A worker of the training code as a process, with nothing around it but its folder."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from patchlight.agents import training
from tests.support.torch_forks import TorchFork, TorchForks
from tests.support.waiting import ask, wait_until

TRAINING = Path(training.__file__).parent
# What an agent would tell it: the interface, and one thread for each worker.
ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
PROGRAM = ("-m", "patchlight.agents.training")


class Worker:
    """One worker process with nothing around it but its folder and the training code.

    ``program`` is what Python runs in the worker's place; with ``forks`` it is forked from there.
    """

    process: subprocess.Popen[bytes] | TorchFork

    def __init__(
        self,
        folder: Path,
        code: Path,
        task: dict[str, Any],
        program: tuple[str, ...] = PROGRAM,
        forks: TorchForks | None = None,
    ) -> None:
        self.folder = folder
        self.program = program
        self.forks = forks
        folder.mkdir()
        (folder / "task.json").write_text(json.dumps(task))
        self.code = code
        self.launch()

    def launch(self) -> None:
        words = [*self.program, "--task", str(self.folder / "task.json")]
        if self.forks is not None:
            log = self.folder / "output.log"
            self.process = self.forks.start(words, self.code, self.folder, log)
            return
        with (self.folder / "output.log").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-s", *words],
                cwd=self.folder,
                env={
                    "PYTHONPATH": str(self.code),
                    "PATH": os.environ["PATH"],
                    **ENVIRONMENT,
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def tell(self, **request: Any) -> dict[str, Any]:
        return ask(self.folder / "control.sock", request)

    @property
    def state(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.folder / "state.json").read_text()))
        except FileNotFoundError:
            return {"state": "starting", "iterations_done": 0}

    def until(self, state: str, iterations: int | None = None) -> None:
        """Wait until the worker is in ``state``, after exactly ``iterations`` where given."""

        def there() -> bool:
            now = self.state
            return now["state"] == state and iterations in (
                None,
                now["iterations_done"],
            )

        wait_until(there, f"{state}, {iterations} iterations")

    @property
    def reports(self) -> list[dict[str, Any]]:
        # What follows the last end of a line is being written.
        *lines, _ = (self.folder / "reports.jsonl").read_text().split("\n")
        return [json.loads(line) for line in lines]

    @property
    def output(self) -> str:
        return (self.folder / "output.log").read_text()


def start(job: list[Worker]) -> None:
    for worker in job:
        worker.until("ready")
        assert worker.tell(op="start")["ok"]
