"""Drives an OCS with pygnmi, which is nobody's of ours: ``python -m`` this, ADDRESS CERTIFICATE.

A process of its own; prints what it got as JSON, one step a key.
"""

import json
import sys
import threading
import time
from typing import Any

from pygnmi.client import gNMIclient, gNMIException

ENTRY = "/connections/port-connection[name={}]"
STATUS = "/connections/port-connection[name=*]/state/status"
WITHIN_S = 20.0


def entry(name: str, inp: int, out: int) -> tuple[str, dict[str, str]]:
    ports = {
        "input-port-name": f"port-{inp}",
        "output-port-name": f"port-{out}",
    }
    return f"{ENTRY.format(name)}/config", {"name": name, **ports}


def values(answer: Any) -> dict[str, Any]:
    return {
        update["path"]: update["val"]
        for told in answer["notification"]
        for update in told.get("update", [])
    }


def refused(call: Any) -> str:
    try:
        call()
    except gNMIException as error:
        return str(error)
    return "done"


def status_of(client: Any, name: str) -> str:
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        (status,) = values(
            client.get(path=[f"{ENTRY.format(name)}/state/status"])
        ).values()
        if not status.startswith("PENDING"):
            break
    return str(status)


def steps(client: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    offered = client.capabilities()
    found["models"] = [m["name"] for m in offered["supported_models"]]
    found["first"] = values(client.get(path=["/connections"]))
    found["prefixed"] = values(
        client.get(
            path=[
                "ocp-ocs-optical-switch-connections:connections/port-connection[name=*]/config"
            ]
        )
    )
    heard: list[Any] = []
    stream = client.subscribe2(
        subscribe={
            "subscription": [
                {"path": STATUS, "mode": "on_change"},
                {
                    "path": "/components/component[name=port-3]/ocp-ocs-port/state/counters",
                    "mode": "sample",
                    "sample_interval": 100_000_000,
                },
            ],
            "mode": "stream",
            "encoding": "json_ietf",
        }
    )
    threading.Thread(target=lambda: heard.extend(stream), daemon=True).start()
    time.sleep(0.5)  # pygnmi does not say when it has subscribed
    found["set"] = client.set(update=[entry("x1", 3, 41), entry("x2", 4, 42)])
    found["status"] = [status_of(client, name) for name in ("x1", "x2")]
    found["peer"] = values(
        client.get(
            path=[
                "/components/component[name=port-3]/ocp-ocs-port/state/connection"
            ]
        )
    )
    found["twice"] = refused(
        lambda: client.set(update=[entry("x4", 6, 44), entry("x3", 3, 43)])
    )
    found["nothing of it"] = "x4" in json.dumps(
        values(client.get(path=["/connections"]))
    )
    # Judged by its result: what frees the port comes in the same Set.
    client.set(delete=[ENTRY.format("x1")], update=[entry("x5", 3, 43)])
    found["moved"] = status_of(client, "x5")
    client.set(
        update=[
            (
                "/components/component[name=port-8]/ocp-ocs-port/config",
                {"enabled": False},
            )
        ]
    )
    client.set(update=[entry("x6", 8, 45)])
    found["on a disabled port"] = values(
        client.get(path=[f"{ENTRY.format('x6')}/state"])
    )
    found["wrong"] = [
        refused(
            lambda path=path, value=value: client.set(update=[(path, value)])
        )
        for path, value in (
            entry("a", 9, 99),
            entry("a", 41, 9),
            (f"{ENTRY.format('a')}/config", {"name": "b"}),
            (f"{ENTRY.format('a')}/config", {"name": "a"}),
            (f"{ENTRY.format('a')}/state", {"status": "CONNECTED"}),
            ("/connections", "nothing"),
            ("/connections/port-connection[name=a]/config", "nothing"),
            (
                "/components/component[name=port-1]/ocp-ocs-port/config",
                {"enabled": "yes"},
            ),
            (
                "/components/component[name=port-77]/ocp-ocs-port/config",
                {"enabled": True},
            ),
            ("/optical-switch/config", {"cold-boot-recovery": "DANCE"}),
            ("/optical-switch/config", {"bidirectional": True}),
        )
    ]
    found["no path"] = refused(lambda: client.get(path=["/interfaces"]))
    client.set(delete=[ENTRY.format("x6"), ENTRY.format("not-there")])
    client.set(
        replace=[
            (
                "/connections",
                {
                    "port-connection": [
                        {"name": name, "config": config}
                        for name, (_, config) in (
                            ("x2", entry("x2", 4, 42)),
                            ("x9", entry("x9", 9, 49)),
                        )
                    ]
                },
            )
        ]
    )
    deadline = time.monotonic() + WITHIN_S
    while "x9" not in json.dumps(heard) and time.monotonic() < deadline:
        time.sleep(0.05)  # the pause between two looks
    found["last"] = values(
        client.get(path=["/connections/port-connection[name=*]/config/name"])
    )
    found["heard"] = heard[:200]
    return found


def main(address: str, certificate: str, password: str) -> None:
    host, _, port = address.rpartition(":")
    login = {
        "username": "admin",
        "path_cert": certificate,
        "override": "emulated-ocs",
    }
    wrong = refused(
        lambda: gNMIclient(
            target=(host, int(port)), password="wrong", **login
        ).connect()
    )
    with gNMIclient(
        target=(host, int(port)), password=password, **login
    ) as client:
        found = steps(client)
    print("\n" + json.dumps({"login": wrong, **found}))


if __name__ == "__main__":
    main(*sys.argv[1:])
