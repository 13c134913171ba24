"""What a change over gNMI takes at least: its own calls by a blocking channel, and one fsync."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import grpc

from patchlight.controller.circuits.drivers.ocp_gnmi import OcpGnmi
from patchlight.controller.circuits.protocols import gnmi
from patchlight.emulation.optical.vendors.gnmi import CERTIFICATE

Call = tuple[str, Any, list[str]]
"""The method, its request, and the names of the entries that it deletes."""
_CONNECTIONS = ("connections",)
_LOGIN = (("username", "admin"), ("password", ""))


class RecordingClient(gnmi.GnmiClient):
    """Notes its calls, and which ports each entry has ever joined."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sent: list[Call] = []
        self.ports: dict[str, tuple[str, str]] = {}

    async def get(self, *paths: gnmi.Steps) -> gnmi.Tree:
        request = gnmi.message("GetRequest")(
            path=map(gnmi.path_of, paths), encoding=gnmi.JSON_IETF
        )
        self._sent.append(("Get", request, []))
        tree = await super().get(*paths)
        self.ports |= ports_in(tree)
        return tree

    async def change(
        self,
        deletes: Any,
        updates: Mapping[gnmi.Steps, Mapping[str, Any]],
    ) -> None:
        deletes = list(deletes)
        request = gnmi.message("SetRequest")(
            update=[
                {
                    "path": gnmi.path_of(steps),
                    "val": {"json_ietf_val": json.dumps(value).encode()},
                }
                for steps, value in updates.items()
            ]
        )
        names = [gnmi.keys_of(steps)[-1] for steps in deletes]
        self._sent.append(("Set", request, names))
        await super().change(deletes, updates)

    def take_sent(self) -> list[Call]:
        """What was called since this was last called."""
        sent = self._sent
        self._sent = []
        return sent


class RecordingDriver(OcpGnmi):
    client_class: ClassVar[type[gnmi.GnmiClient]] = RecordingClient
    client: RecordingClient


def ports_in(tree: gnmi.Tree) -> dict[str, tuple[str, str]]:
    entries = gnmi.at(tree, "connections", "port-connection")
    configs = {name: gnmi.at(row, "config") for name, row in entries.items()}
    return {
        name: (config["input-port-name"], config["output-port-name"])
        for name, config in configs.items()
    }


class BareGnmi:
    """Replays what a driver called, on the emulated device at this address."""

    def __init__(self, address: str, file: Path) -> None:
        self._channel = grpc.secure_channel(
            address,
            grpc.ssl_channel_credentials(CERTIFICATE.encode()),
            [("grpc.ssl_target_name_override", "emulated-ocs")],
        )
        self._calls: dict[str, Any] = {
            method: self._channel.unary_unary(
                f"/{gnmi.SERVICE}/{method}",
                request_serializer=gnmi.message(asks).SerializeToString,
                response_deserializer=gnmi.message(answers).FromString,
            )
            for method, (asks, answers) in gnmi.METHODS.items()
            if method != "Subscribe"
        }
        self._file = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._call("Capabilities", gnmi.message("CapabilityRequest")())

    def prepared(
        self, calls: Sequence[Call], ports: Mapping[str, tuple[str, str]]
    ) -> list[tuple[str, Any]]:
        """The requests that do the same now, when other entries join the same ``ports``."""
        request = gnmi.message("GetRequest")(
            path=[gnmi.path_of(_CONNECTIONS)], encoding=gnmi.JSON_IETF
        )
        tree: gnmi.Tree = {}
        for told in self._call("Get", request).notification:
            for update in told.update:
                keys = gnmi.keys_of(gnmi.steps_of(update.path))
                gnmi.put(tree, keys, gnmi.value_of(update.val))
        names = {joined: name for name, joined in ports_in(tree).items()}
        requests = []
        for method, request, deletes in calls:
            again = type(request)()
            again.CopyFrom(request)
            for name in deletes:
                steps = ("port-connection", names[ports[name]])
                again.delete.append(gnmi.path_of((*_CONNECTIONS, steps)))
            requests.append((method, again))
        return requests

    def replay(
        self,
        requests: Sequence[tuple[str, Any]],
        journalled: bytes,
        switching_time_s: float,
    ) -> None:
        """Write down and sync what is ``journalled``, then call; see ``BareClient``."""
        os.write(self._file, journalled)
        os.fsync(self._file)
        turning = False
        for method, request in requests:
            if turning:
                time.sleep(switching_time_s)  # mirrors turn
            turning = method == "Set" and bool(request.update)
            answer = self._call(method, request)
            for told in getattr(answer, "notification", ()):
                for update in told.update:
                    # A script would read what it asked for.
                    json.loads(update.val.json_ietf_val)

    def _call(self, method: str, request: Any) -> Any:
        return self._calls[method](request, metadata=_LOGIN)

    def close(self) -> None:
        """Let go of the device and the file."""
        self._channel.close()
        os.close(self._file)
