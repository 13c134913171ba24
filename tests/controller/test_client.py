"""What the client says of a controller that goes away, and of an unknown outcome."""

from __future__ import annotations

import socket
import threading

import pytest
from fastapi import Request

from patchlight.controller.api.circuits import explain
from patchlight.controller.client import ControllerClient, ControllerError
from patchlight.testbed.errors import OutcomeUnknown


def test_a_controller_that_goes_away_after_it_was_asked_leaves_the_outcome_unknown() -> None:
    def answer_nothing(listening: socket.socket) -> None:
        for _ in range(3):
            connection, _ = listening.accept()
            connection.recv(65536)
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer_nothing, args=(listening,))
        thread.start()
        with ControllerClient(f"127.0.0.1:{listening.getsockname()[1]}") as client:
            with pytest.raises(OutcomeUnknown, match="did not say what came of it"):
                client.reconfigure({"ocs1": ["1-2"]})
            # These change nothing, whatever became of them.
            with pytest.raises(ControllerError):
                client.reconfigure({"ocs1": ["1-2"]}, dry_run=True)
            with pytest.raises(ControllerError):
                client.circuits()
        thread.join()


async def test_an_unknown_outcome_goes_through_the_api_as_one() -> None:
    answer = await explain(Request({"type": "http"}), OutcomeUnknown("was it?"))
    assert b'"outcome":"unknown"' in answer.body
