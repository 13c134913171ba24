"""An OCS written from gnmi.proto and OCP's model alone: ``python -m`` this, HABIT FOLDER.

It has little in common with the emulated device: pygnmi's stubs, threads, leaf by leaf in plain
values, ports called ``eth-…`` in an order of their own, a certificate that an authority signed. It
writes ``host:port`` to FOLDER/ready, and each ``Set`` to FOLDER/sets as a line of JSON. A HABIT:

``plain``: none. ``invalid``: entries at ``eth-5`` are INVALID. ``refuses``: a Set with ``eth-5`` is
refused. ``fails``: entries at ``eth-5`` become FAILED. ``slow``: deleted entries are
PENDING_DELETION for a while. ``floods``: 10,000 updates a second. ``other-model``: it has none of
OCP's. ``dies``: it ends in the midst of a Set, after it is done. ``never``: entries stay pending.
"""

import datetime
import ipaddress
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pygnmi.spec.v080 import gnmi_pb2, gnmi_pb2_grpc

PORTS = 8
NAMES = [f"eth-{n}" for n in range(1, 2 * PORTS + 1)]
MODELS = ("", "-connections", "-port")
SLOW_S = 0.3
BURST = 100


def certificate(folder: Path) -> tuple[bytes, bytes]:
    """Key and certificate in PEM, of an authority that nobody knows."""
    now = datetime.datetime.now(datetime.UTC)

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    authority = ec.generate_private_key(ec.SECP256R1())
    key = ec.generate_private_key(ec.SECP256R1())
    address = x509.IPAddress(ipaddress.ip_address("192.0.2.7"))
    made = (
        x509.CertificateBuilder()
        .subject_name(named("an OCS"))
        .issuer_name(named("a lab"))
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), False)
        .sign(authority, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return private, made.public_bytes(serialization.Encoding.PEM)


def path(*steps: str | tuple[str, str]) -> Any:
    elems = [
        gnmi_pb2.PathElem(name=step)
        if isinstance(step, str)
        else gnmi_pb2.PathElem(name=step[0], key={"name": step[1]})
        for step in steps
    ]
    return gnmi_pb2.Path(elem=elems)


def leaf(value: Any, *steps: str | tuple[str, str]) -> Any:
    kind = {bool: "bool_val", int: "uint_val", str: "string_val"}[type(value)]
    return gnmi_pb2.Update(
        path=path(*steps), val=gnmi_pb2.TypedValue(**{kind: value})
    )


class Switch(gnmi_pb2_grpc.gNMIServicer):  # type: ignore[misc]
    def __init__(self, habit: str, folder: Path) -> None:
        self.habit = habit
        self.folder = folder
        self.entries: dict[str, dict[str, str]] = {
            "theirs": {"input-port-name": "eth-4", "output-port-name": "eth-9"}
        }
        self.status = {"theirs": "CONNECTED"}
        self.lock = threading.Lock()

    def Capabilities(self, request: Any, context: Any) -> Any:
        self.log_in(context)
        name = "other" if self.habit == "other-model" else "ocp-ocs"
        models = [
            gnmi_pb2.ModelData(name=f"{name}-optical-switch{model}")
            for model in MODELS
        ]
        return gnmi_pb2.CapabilityResponse(
            supported_models=models,
            supported_encodings=[gnmi_pb2.JSON],
            gNMI_version="0.8.0",
        )

    def log_in(self, context: Any) -> None:
        given = dict(context.invocation_metadata())
        if given.get("password") != "pw":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")

    def Get(self, request: Any, context: Any) -> Any:
        self.log_in(context)
        with self.lock:
            leaves = [*self.leaves()]
        tops = {each.elem[0].name for each in request.path}
        if not tops <= {"connections", "optical-switch", "components"}:
            context.abort(grpc.StatusCode.NOT_FOUND, f"none of {tops}")
        told = [each for each in leaves if each.path.elem[0].name in tops]
        return gnmi_pb2.GetResponse(
            notification=[
                gnmi_pb2.Notification(update=[each]) for each in told
            ]
        )

    def leaves(self) -> Iterator[Any]:
        for name, ports in self.entries.items():
            entry = ("connections", ("port-connection", name))
            for key, value in ports.items():
                yield leaf(value, *entry, "config", key)
            status = self.status[name]
            yield leaf(status, *entry, "state", "status")
            if status in ("INVALID", "FAILED"):
                yield leaf("dust", *entry, "state", "status-reason")
        for index, name in enumerate(NAMES):
            port = ("components", ("component", name), "ocp-ocs-port", "state")
            # The first inputs have the last indices.
            yield leaf(2 * PORTS - index, *port, "index")
            yield leaf("UNKNOWN", *port, "status")
            group = "west" if index < PORTS else "east"
            yield leaf(group, *port, "group")
        for here, there, way in (
            ("west", "east", "INPUT-ONLY"),
            ("east", "west", "OUTPUT-ONLY"),
        ):
            groups = ("optical-switch", "state", ("port-groups", here))
            yield leaf(way, *groups, "direction")
            peer = gnmi_pb2.PathElem(
                name="connection-groups", key={"peer-name": there}
            )
            update = leaf(there, *groups, "peer-name")
            update.path.elem.insert(3, peer)
            yield update

    def Set(self, request: Any, context: Any) -> Any:
        self.log_in(context)
        new = {
            each.path.elem[1].key["name"]: json.loads(each.val.json_val)
            for each in request.update
        }
        gone = [each.elem[1].key["name"] for each in request.delete]
        with (self.folder / "sets").open("a") as file:
            file.write(json.dumps({"delete": gone, "update": new}) + "\n")
        odd = [
            name for name, ports in new.items() if "eth-5" in ports.values()
        ]
        if odd and self.habit == "refuses":
            context.abort(grpc.StatusCode.ABORTED, "eth-5 is dusty")
        with self.lock:
            for name in gone:
                self.delete(name)
            for name, ports in new.items():
                assert ports.pop("name") == name
                self.entries[name] = ports
                self.status[name] = "PENDING_CONNECTION"
                end = "CONNECTED"
                if name in odd:
                    end = {"invalid": "INVALID", "fails": "FAILED"}.get(
                        self.habit, end
                    )
                if self.habit != "never":
                    self.status[name] = end
        if self.habit == "dies":
            (self.folder / "left").write_text(json.dumps(self.entries))
            os._exit(1)
        return gnmi_pb2.SetResponse()

    def delete(self, name: str) -> None:
        if self.habit == "slow" and name in self.entries:
            self.status[name] = "PENDING_DELETION"
            threading.Timer(SLOW_S, self.entries.pop, (name, None)).start()
        else:
            self.entries.pop(name, None)

    def Subscribe(self, requests: Any, context: Any) -> Iterator[Any]:
        self.log_in(context)
        next(requests)
        yield gnmi_pb2.SubscribeResponse(sync_response=True)
        number = 0
        while context.is_active():
            time.sleep(0.01)  # the pause between two bursts
            if self.habit == "floods":
                number += BURST
                yield gnmi_pb2.SubscribeResponse(
                    update=gnmi_pb2.Notification(
                        update=[
                            leaf(
                                f"dust {number + n}",
                                "connections",
                                ("port-connection", f"e{n}"),
                                "state",
                                "status-reason",
                            )
                            for n in range(BURST)
                        ]
                    )
                )


def main(habit: str, folder: Path) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(8))
    gnmi_pb2_grpc.add_gNMIServicer_to_server(Switch(habit, folder), server)
    credentials = grpc.ssl_server_credentials([certificate(folder)])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    new = folder / "ready.new"
    new.write_text(f"127.0.0.1:{port}")
    new.rename(folder / "ready")
    server.wait_for_termination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
