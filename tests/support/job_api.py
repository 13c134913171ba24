"""``patchlight job`` and other commands, against the controller of a simulated lab."""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TypeVar
from unittest import mock

import httpx
from click.testing import CliRunner, Result

from patchlight.cli.main import cli
from patchlight.testbed.errors import PatchlightError
from tests.simulation.servers import ToProcess
from tests.simulation.world import Process
from tests.support.job_cluster import Cluster

T = TypeVar("T")


class Caller:
    """Runs a client's code, which blocks, in a thread beside the simulated world.

    The world stands still while the thread computes, and goes on until its request is answered.
    """

    _here = threading.local()

    def __init__(self, cluster: Cluster) -> None:
        self._way = ToProcess(
            cluster.world,
            Process(cluster.world, "user"),
            lambda: (cluster.controller, cluster.app),
        )
        patch = mock.patch.object(
            httpx.HTTPTransport, "handle_request", self._handle
        )
        cluster.at_end.enter_context(patch)

    async def run(self, code: Callable[[], T]) -> T:
        """What the code returns or raises."""
        requests: queue.Queue[httpx.Request | None] = queue.Queue()
        answers: queue.Queue[httpx.Response | httpx.HTTPError] = queue.Queue()
        result: list[T | BaseException] = []

        def work() -> None:
            self._here.requests = requests
            self._here.answers = answers
            try:
                result.append(code())
            except BaseException as error:
                result.append(error)
            requests.put(None)

        thread = threading.Thread(target=work)
        thread.start()
        while (request := requests.get(timeout=60)) is not None:
            try:
                answers.put(await self._way.handle_async_request(request))
            except httpx.HTTPError as error:
                answers.put(error)
        thread.join()
        if isinstance(result[0], BaseException):
            raise result[0]
        return result[0]

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self._here.requests.put(request)
        answer: httpx.Response | httpx.HTTPError = self._here.answers.get()
        if isinstance(answer, httpx.HTTPError):
            raise answer
        return answer


class LabCommand:
    """Runs commands of ``patchlight NOUN`` at a controller's API; the lab goes on meanwhile."""

    def __init__(self, api: str, noun: str) -> None:
        self.api = api
        self._noun = noun

    async def __call__(
        self, *words: str, code: int = 0, text: str | None = None
    ) -> str:
        """What was printed, the error included. ``code``: how it is to end; ``text``: its input."""
        return await self.run(lambda: self._run(words, code, text))

    async def run(self, code: Callable[[], T]) -> T:
        """What a client's code returns."""
        return await asyncio.to_thread(code)

    def _run(self, words: tuple[str, ...], code: int, text: str | None) -> str:
        at = words.index("--") if "--" in words else len(words)
        command = [
            self._noun,
            *words[:at],
            "--controller",
            self.api,
            *words[at:],
        ]
        result: Result = CliRunner().invoke(
            cli, command, input=text, env={"COLUMNS": "80"}
        )
        error = result.exception
        exit_code = (
            error.exit_code
            if isinstance(error, PatchlightError)
            else result.exit_code
        )
        assert exit_code == code, (result.output, error)
        return f"{result.output}{error if isinstance(error, PatchlightError) else ''}"


class JobCommand(LabCommand):
    """The same in a simulated lab."""

    def __init__(self, cluster: Cluster, noun: str = "job") -> None:
        super().__init__("127.0.0.1:8080", noun)
        self._caller = Caller(cluster)

    async def run(self, code: Callable[[], T]) -> T:
        """What a client's code returns."""
        return await self._caller.run(code)
