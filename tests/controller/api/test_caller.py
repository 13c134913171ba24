"""Whose name the history gets: the login that the kernel shows, not what a client says."""

import json
import os
import pwd
import socket
import subprocess
import sys

import pytest

from patchlight.controller.api.caller import user_id_of
from patchlight.controller.client import ControllerClient
from tests.support.controller_process import ControllerProcess

# Asks for a change under a name of its own choosing.
_ASK = """
import sys
from patchlight.controller.client import ControllerClient
with ControllerClient(sys.argv[1], user="eva") as client:
    client.reconfigure({"o1": ["7-8"]})
"""


def ask(controller: ControllerProcess, user: int | None = None) -> tuple[str, str]:
    subprocess.run(
        [sys.executable, "-c", _ASK, controller.api],
        check=True,
        timeout=30,
        user=user,
        cwd="/",
        env={"PYTHONPATH": os.getcwd(), "HOME": "/"},
    )
    last = controller.client.reconfigurations()[-1]
    return last["by"], last["origin"]


def test_this_users_connection_shows_its_user_id() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            assert user_id_of(client.getsockname(), server.getsockname()) == os.getuid()
        assert user_id_of(("127.0.0.1", 1), server.getsockname()) is None
        assert user_id_of(("192.0.2.1", 4000), server.getsockname()) is None


@pytest.mark.root
def test_a_user_goes_by_the_login_and_the_superuser_may_speak_for_others(
    controller: ControllerProcess,
) -> None:
    by, origin = ask(controller)
    assert by == "eva"
    assert origin.endswith("(uid 0)")
    nobody = pwd.getpwnam("nobody")
    by, origin = ask(controller, user=nobody.pw_uid)
    assert by == "nobody"
    assert origin.endswith(f"(uid {nobody.pw_uid})")
    assert json.dumps(controller.client.reconfigurations()).count("eva") == 1


def test_without_a_name_it_is_the_login(controller: ControllerProcess) -> None:
    with ControllerClient(controller.api) as client:
        client.reconfigure({"o1": ["7-8"]})
    assert controller.client.reconfigurations()[-1]["by"] == pwd.getpwuid(os.getuid()).pw_name
