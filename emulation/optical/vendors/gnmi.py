"""Emulates a switch with OCP's model (0.8.0) over gNMI, with TLS below.

Port n of a switch of N ports is ``port-<n>`` as an input, and ``port-<N+n>`` as an output: the
mirrors turn light from inputs to outputs only, also where a group of ports is ``ANY``. A ``Set`` is
done as a whole or refused; entries at ports that the configuration disables become ``INVALID``, and
stay so. Deleted entries go at once. ``reboot keep`` is a warm restart, ``reboot forget`` a power
cut: what stays is as ``cold-boot-recovery`` says.
"""

import asyncio
import contextlib
import copy
import datetime
import hashlib
import json
import ssl
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from patchlight.controller.circuits.contract import SIDES, Side
from patchlight.controller.circuits.protocols import gnmi
from patchlight.controller.circuits.protocols.gnmi import grpc
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.emulated_switch import HungUp
from patchlight.emulation.optical.matrices import Phase, SwitchedCircuit
from patchlight.emulation.optical.protocols.server import ProtocolServer
from patchlight.testbed.lab.portmap import CrossConnect

Steps = gnmi.Steps
Port = tuple[Side, int]

_MODULES = {
    "connections": "ocp-ocs-optical-switch-connections",
    "optical-switch": "ocp-ocs-optical-switch",
    "components": "openconfig-platform",
    "system": "openconfig-system",
}
_PORT_MODULE = "ocp-ocs-optical-switch-port"
_BEGIN = {**_MODULES, "ocp-ocs-port": _PORT_MODULE}
_ORIGINS = {"", "openconfig", *_BEGIN.values()}
_LISTS = {
    "port-connection": "name",
    "component": "name",
    "port-groups": "name",
    "connection-groups": "peer-name",
    "alarm": "id",
}
_WRITABLE = {
    "/connections/port-connection/name": str,
    "/connections/port-connection/config/name": str,
    "/connections/port-connection/config/input-port-name": str,
    "/connections/port-connection/config/output-port-name": str,
    "/optical-switch/config/bidirectional": bool,
    "/optical-switch/config/cold-boot-recovery": str,
    "/components/component/name": str,
    "/components/component/ocp-ocs-port/config/enabled": bool,
    "/components/component/ocp-ocs-port/config/alias": str,
    "/components/component/ocp-ocs-port/config/description": str,
}
# For each shape, the groups and what each may be joined to.
_GROUPS = {
    "": "inputs:outputs outputs:inputs",
    "any": "all:all",
    "three": "A:B,C B:A C:A,C",
    "fabrics": "A1:B1 A2:B2 A3:B3 A4:B4 B1:A1 B2:A2 B3:A3 B4:A4",
}
_DIRECTIONS = {"inputs": "INPUT-ONLY", "outputs": "OUTPUT-ONLY"}
_RECOVERIES = ("MAINTAIN", "RESTORE", "REMOVE")
_STATUS = {Phase.SWITCHING: "PENDING_CONNECTION", Phase.LIT: "CONNECTED"}
_PORT_STATUS = {
    Phase.SWITCHING: "TUNING",
    Phase.LIT: "TUNED",
    Phase.FAILED: "FAILED",
}
_COUNTERS = {"correctable-error-count": "0", "total-error-count": "0"}
_FABRICS = 4
_LOOK_S = 0.02
_FASTEST_S = 0.1
_LEAVES = 500
# As the proto numbers them: operations of a Set, modes of a list of subscriptions.
_DELETE = 1
_REPLACE = 2
_UPDATE = 3
_STREAM = 0
_ONCE = 1

Code = grpc.StatusCode


class _Refused(Exception):
    def __init__(self, code: Code, words: str) -> None:
        super().__init__(words)
        self.code = code


class OcpGnmiServer(ProtocolServer):
    """gNMI with OCP's tree."""

    port = 9339
    by_hand = (
        'pygnmicli -t {host}:{port} -u "{user}" -p "{password}" --skip-verify -o get '
        "-e json_ietf -o get -x /connections"
    )

    _device: EmulatedOcs

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        self.tls = _server_context()
        self._settings: gnmi.Tree = {}
        self._invalid: dict[str, tuple[CrossConnect, str]] = {}
        self._told: dict[str, tuple[str, str, str]] = {}
        self._last_change = _now()
        self._alarms = deque[gnmi.Tree](maxlen=1000)
        self._reports = 0
        self._sets = 0

    def report(self, text: str) -> None:
        """Add it to the list of alarms."""
        self._reports += 1
        number = str(self._reports)
        state = {
            "id": number,
            "resource": "chassis",
            "text": text,
            "severity": "openconfig-alarm-types:MAJOR",
        }
        self._alarms.append({"id": number, "state": state})

    async def reboot(self, *, keep_map: bool) -> None:
        """See ``ProtocolServer``."""
        self.cut()
        recovery = self._recovery
        if keep_map or recovery == "MAINTAIN":
            return
        if recovery == "REMOVE":
            self._invalid.clear()
        await self._device.reboot(keep_map=recovery == "RESTORE")

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        # gRPC serves no connection that others accepted: each has a server of its own here.
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self._handlers(writer),))
        with tempfile.TemporaryDirectory(prefix="patchlight-gnmi-") as folder:
            path = Path(folder) / "socket"
            server.add_insecure_port(f"unix:{path}")
            await server.start()
            try:
                inner, outer = await asyncio.open_unix_connection(path)
                ways = [
                    asyncio.create_task(_copy(reader, outer)),
                    asyncio.create_task(
                        _copy(inner, writer, self._device.faults.spoilt)
                    ),
                ]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
                await asyncio.wait(ways)
                outer.close()
            finally:
                await server.stop(None)

    # --- the methods of gNMI ------------------------------------------------------------------

    def _handlers(self, writer: asyncio.StreamWriter) -> Any:
        async def change(request: Any, context: Any) -> Any:
            async with self._refusing(context) as user:
                # Who no longer waits does not stop it.
                changing = asyncio.create_task(self._change(request, user))
                try:
                    return await asyncio.shield(changing)
                except HungUp:
                    writer.transport.abort()
                    raise

        unary = grpc.unary_unary_rpc_method_handler
        stream = grpc.stream_stream_rpc_method_handler
        calls: Mapping[str, tuple[Any, Any]] = {
            "Capabilities": (unary, self._capabilities),
            "Get": (unary, self._get),
            "Set": (unary, change),
            "Subscribe": (stream, self._subscribe),
        }
        handlers = {}
        for name, (make, call) in calls.items():
            asks, answers = map(gnmi.message, gnmi.METHODS[name])
            handlers[name] = make(
                call, asks.FromString, answers.SerializeToString
            )
        return grpc.method_handlers_generic_handler(gnmi.SERVICE, handlers)

    @contextlib.asynccontextmanager
    async def _refusing(
        self, context: Any, encoding: int = gnmi.JSON_IETF
    ) -> AsyncIterator[str]:
        """Log the caller in, and answer refusals in the block."""
        login = dict(context.invocation_metadata())
        user, password = (
            str(login.get(key, "")) for key in ("username", "password")
        )
        try:
            if not self._device.lets_in(user, password):
                raise _Refused(
                    Code.UNAUTHENTICATED, "invalid user or password"
                )
            if encoding != gnmi.JSON_IETF:
                raise _Refused(Code.UNIMPLEMENTED, "only JSON_IETF is spoken")
            yield user
        except _Refused as refusal:
            await context.abort(refusal.code, str(refusal))

    async def _capabilities(self, request: Any, context: Any) -> Any:
        async with self._refusing(context):
            return gnmi.message("CapabilityResponse")(
                supported_models=[
                    {"name": name, "organization": "TBD", "version": "0.8.0"}
                    for name in _BEGIN.values()
                ],
                supported_encodings=[gnmi.JSON_IETF],
                gNMI_version="0.10.0",
            )

    async def _get(self, request: Any, context: Any) -> Any:
        for number in range(self._device.faults.take_flood()):
            self.report(f"Alarm {number}")
        without = {1: "state", 2: "config", 3: "config"}.get(request.type, "")
        told = []
        async with self._refusing(context, request.encoding):
            for path in request.path:
                steps = _steps(request.prefix, path)
                found = list(await self._selected(steps))
                if not found and not any("*" in step for step in steps):
                    shown = "/".join(gnmi.keys_of(steps))
                    raise _Refused(Code.NOT_FOUND, f"/{shown} is not there")
                updates = [
                    _update(at, _without(value, without))
                    for at, value in found
                ]
                told.append({"timestamp": time.time_ns(), "update": updates})
        return gnmi.message("GetResponse")(notification=told)

    async def _change(self, request: Any, user: str) -> Any:
        """All of a ``Set`` is done, or nothing and ``_Refused``."""
        async with self._device.faults.around_command(changes=True) as refusal:
            if not self._device.may_change(user):
                raise _Refused(
                    Code.PERMISSION_DENIED, "this user may only look"
                )
            if refusal:
                raise _Refused(Code.ABORTED, refusal)
            await self._device.settle()
            wanted = copy.deepcopy(self._writable())
            done = []
            try:
                for operation, path, value in _operations(request):
                    steps = _steps(request.prefix, path)
                    if operation != _UPDATE:
                        for found, _ in list(_select(wanted, steps)):
                            *way, last = gnmi.keys_of(found)
                            gnmi.at(wanted, *way).pop(last)
                    if value is not None:
                        keys = gnmi.keys_of(steps)
                        gnmi.put(wanted, keys, gnmi.value_of(value))
                    done.append({"path": path, "op": operation})
                _check(wanted)
            except (ValueError, AttributeError, RecursionError) as error:
                raise _Refused(Code.INVALID_ARGUMENT, str(error)) from error
            self._load(wanted)
            await self._device.settle()
        return gnmi.message("SetResponse")(
            response=done, timestamp=time.time_ns()
        )

    async def _subscribe(
        self, requests: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[Any]:
        wanted = (await anext(requests)).subscribe
        async with self._refusing(context, wanted.encoding):
            if wanted.mode == _STREAM:
                async for each in self._stream(wanted):
                    yield each
            # Once, or at each request from now on.
            while wanted.mode != _STREAM:
                for each in wanted.subscription:
                    steps = _steps(wanted.prefix, each.path)
                    for told in _told(await self._leaves(steps), ()):
                        yield told
                yield _synced()
                if wanted.mode == _ONCE or await anext(requests, None) is None:
                    return

    async def _stream(self, wanted: Any) -> AsyncIterator[Any]:
        loop = asyncio.get_running_loop()
        watched = []
        for each in wanted.subscription:
            samples = each.mode == gnmi.SAMPLE
            interval_s = each.sample_interval / 1e9 or _FASTEST_S
            if samples and interval_s < _LOOK_S:
                raise _Refused(
                    Code.INVALID_ARGUMENT,
                    f"sample_interval is {_LOOK_S:g} s at least",
                )
            watched.append(
                _Watched(
                    _steps(wanted.prefix, each.path),
                    interval_s if samples else None,
                    samples and not each.suppress_redundant,
                )
            )
        mark: object = None
        is_first = True
        while True:
            now = loop.time()
            before, mark = mark, self._mark()
            for one in watched:
                if one.interval_s is None:
                    if before == mark and not is_first:
                        continue
                elif now < one.due:
                    continue
                else:
                    one.due = now + one.interval_s
                leaves = await self._leaves(one.steps)
                old, one.last = one.last, leaves
                new = {
                    at: value
                    for at, value in leaves.items()
                    if one.every or old.get(at) != value
                }
                if not (is_first and wanted.updates_only):
                    for told in _told(
                        new, [at for at in old if at not in leaves]
                    ):
                        yield told
            if is_first:
                yield _synced()
            is_first = False
            await asyncio.sleep(_LOOK_S)

    async def _leaves(self, steps: Steps) -> dict[Steps, Any]:
        """Each leaf there, with its path."""
        return {
            (*at, *inner): value
            for at, whole in await self._selected(steps)
            for inner, value in _leaves(whole)
        }

    def _mark(self) -> object:
        """Something that differs whenever a status may have changed."""
        matrix = self._device.matrix
        return (
            self._sets,
            self._reports,
            tuple((id(each), each.phase) for each in matrix),
            frozenset(matrix.locked),
            frozenset(matrix.failed),
        )

    async def _selected(self, steps: Steps) -> Iterator[tuple[Steps, Any]]:
        await self._device.settle()
        parts = {
            "connections": self._connections,
            "optical-switch": self._optical_switch,
            "components": self._components,
            "system": self._system,
        }
        tree = {}
        for name, part in parts.items():
            if not steps or steps[0] == name:
                tree[name] = await part()
        return _select(tree, steps)

    # --- the tree -----------------------------------------------------------------------------

    async def _connections(self) -> gnmi.Tree:
        entries = {}
        told = {}
        for name, (c, status, reason) in self._statuses().items():
            before = self._told.get(name)
            if before is None or before[:2] != (status, reason):
                before = (status, reason, _now())
                self._last_change = before[2]
            told[name] = before
            config = self._config(name, c)
            state = config | {"status": status, "last-updated": before[2]}
            if reason:
                state["status-reason"] = reason
            entries[name] = {"name": name, "config": config, "state": state}
        if self._told.keys() - told.keys():
            self._last_change = _now()
        self._told = told
        return {
            "last-change-time": self._last_change,
            "port-connection": entries,
        }

    def _statuses(self) -> dict[str, tuple[CrossConnect, str, str]]:
        """Each entry, its status, and the reason for that."""
        found = {}
        disabled = self._disabled()
        failed = self._device.matrix.failed
        for name, circuit in self._circuits().items():
            (c, *_) = circuit.directions
            ports: list[Port] = [("in", c.inp), ("out", c.out)]
            reason = next(
                (
                    f"port {self._index(port)} {words}"
                    for port in ports
                    for words, holds in (
                        ("is disabled", port in disabled),
                        ("has failed", port[1] in failed),
                    )
                    if holds
                ),
                "the path has failed",
            )
            status = _STATUS.get(circuit.phase, "FAILED")
            found[name] = (c, status, reason if status == "FAILED" else "")
        for name, (c, reason) in self._invalid.items():
            found[name] = (c, "INVALID", reason)
        return found

    async def _optical_switch(self) -> gnmi.Tree:
        config = self._writable()["optical-switch"]["config"]
        groups = {
            name: {
                "name": name,
                "direction": self._direction(name),
                "connection-groups": {
                    peer: {"peer-name": peer} for peer in peers
                },
            }
            for name, peers in self._groups().items()
        }
        state = config | {
            "connection-recovery-capability": "MAINTAIN",
            "port-groups": groups,
        }
        return {"config": config, "state": state}

    async def _components(self) -> gnmi.Tree:
        name = self._device.switch.name
        chassis = {
            "name": "chassis",
            "type": "openconfig-platform-types:CHASSIS",
            "mfg-name": "Patchlight",
            "part-no": f"emulated-{self._device.switch.ports}",
            "serial-no": f"EMU-{name}",
            "software-version": "0.1",
            "description": name,
        }
        components = {"chassis": {"name": "chassis", "state": chassis}}
        numbers = range(1, self._device.switch.ports + 1)
        powers = await self._device.power(numbers)
        monitored = {"both": SIDES, "out": ("out",)}.get(
            self._device.faults.monitors, ()
        )
        names = {each: n for n, each in self._circuits().items()}
        for port in self._every_port():
            side, number = port
            state = self._port_state(port, names)
            dbm = powers[number][SIDES.index(side)]
            if dbm is not None and side in monitored:
                state[f"{side}put-optical-power"] = f"{dbm:.2f}"
            components[self._name(port)] = {
                "name": self._name(port),
                "ocp-ocs-port": {
                    "config": self._port_config(port),
                    "state": state,
                },
            }
        return {"component": components}

    def _port_state(
        self, port: Port, names: Mapping[SwitchedCircuit, str]
    ) -> gnmi.Tree:
        side, number = port
        matrix = self._device.matrix
        circuit = matrix.at(side, number)
        status = "BLOCKED"
        state: gnmi.Tree = {}
        if circuit is not None and circuit in names:
            (c, *_) = circuit.directions
            peer: Port = ("out", c.out) if side == "in" else ("in", c.inp)
            status = _PORT_STATUS.get(circuit.phase, status)
            state["connection"] = {
                "peer": self._name(peer),
                "connected": circuit.phase is Phase.LIT,
                "counters": _COUNTERS,
            }
        if number in matrix.failed:
            status = "FAILED"
        config = self._port_config(port)
        return state | {
            **config,
            "enabled": config["enabled"] and number not in matrix.locked,
            "group": self._group(port),
            "index": self._index(port),
            "status": status,
            "counters": _COUNTERS,
        }

    async def _system(self) -> gnmi.Tree:
        rows = {row["id"]: row for row in self._alarms}
        return {"alarms": {"alarm": rows}}

    # --- the configuration --------------------------------------------------------------------

    @property
    def _recovery(self) -> str:
        config = self._writable()["optical-switch"]["config"]
        return str(config["cold-boot-recovery"])

    def _writable(self) -> gnmi.Tree:
        """The configuration as it is."""
        pairs = {n: c for n, (c, *_) in self._statuses().items()}
        config = {"bidirectional": False, "cold-boot-recovery": "REMOVE"}
        config |= gnmi.at(self._settings, "optical-switch", "config")
        return {
            "connections": {
                "port-connection": {
                    name: {"config": self._config(name, c)}
                    for name, c in pairs.items()
                }
            },
            "optical-switch": {"config": config},
            "components": gnmi.at(self._settings, "components"),
        }

    def _load(self, wanted: gnmi.Tree) -> None:
        """Make this the configuration; ``_Refused`` before anything is done."""
        valid = dict[str, CrossConnect]()
        invalid = dict[str, tuple[CrossConnect, str]]()
        self._check_config(gnmi.at(wanted, "optical-switch", "config"))
        ports = {self._name(port): port for port in self._every_port()}
        components = gnmi.at(wanted, "components", "component")
        if unknown := [*(components.keys() - ports.keys())]:
            raise _Refused(Code.NOT_FOUND, f"no port {unknown[0]}")
        disabled = self._disabled(wanted)
        circuits = self._circuits()
        now = {name: each.directions[0] for name, each in circuits.items()}
        taken = dict[Port, str]()
        entries = gnmi.at(wanted, "connections", "port-connection")
        for name, entry in entries.items():
            if not entry.get("config"):
                continue
            c = self._pair(name, entry, ports)
            if self._invalid.get(name, ("",))[0] == c:
                invalid[name] = self._invalid[name]
                continue
            is_new = now.get(name) != c
            both: tuple[Port, Port] = (("in", c.inp), ("out", c.out))
            off = [self._index(port) for port in both if port in disabled]
            if is_new and off:
                invalid[name] = (c, f"port {off[0]} is disabled")
                continue
            for port in both:
                is_locked = port[1] in self._device.matrix.locked
                other = taken.setdefault(port, name)
                if other != name or (is_new and is_locked):
                    words = (
                        f"in use by {other}" if other != name else "disabled"
                    )
                    raise _Refused(
                        Code.FAILED_PRECONDITION,
                        f"{name}: port {self._index(port)} is {words}",
                    )
            valid[name] = c
        for name, circuit in circuits.items():
            if valid.get(name) != now[name]:
                self._device.remove(circuit)
        for name, c in valid.items():
            if now.get(name) != c:
                self._device.make((c,), name)
        self._invalid = invalid
        self._settings = wanted
        self._sets += 1
        self._switch_off(disabled)

    @staticmethod
    def _check_config(config: gnmi.Tree) -> None:
        """``_Refused`` for a configuration of the whole device that it does not support."""
        if config.get("cold-boot-recovery", "REMOVE") not in _RECOVERIES:
            raise _Refused(
                Code.INVALID_ARGUMENT,
                f"cold-boot-recovery is one of {', '.join(_RECOVERIES)}",
            )
        if config.get("bidirectional"):
            raise _Refused(
                Code.INVALID_ARGUMENT, "this device is not bidirectional"
            )

    def _switch_off(self, disabled: set[Port]) -> None:
        """Circuits through disabled ports pass nothing; all others do."""
        for circuit in self._circuits().values():
            (c, *_) = circuit.directions
            if disabled & {("in", c.inp), ("out", c.out)}:
                self._device.deactivate(circuit)
            elif circuit.phase is Phase.PARKED:
                self._device.activate(circuit)

    def _pair(
        self,
        name: str,
        entry: gnmi.Tree,
        ports: Mapping[str, Port],
    ) -> CrossConnect:
        """What an entry joins; ``_Refused`` if the device cannot."""
        config = entry["config"]
        if {config.get("name", name), entry.get("name", name)} != {name}:
            raise _Refused(
                Code.INVALID_ARGUMENT, f"{name}: its name is not its key"
            )
        found = []
        for side in SIDES:
            key = f"{side}put-port-name"
            port = ports.get(config.get(key, ""))
            if port is None or port[0] != side:
                raise _Refused(
                    Code.INVALID_ARGUMENT,
                    f"{name}: {key} {config.get(key)!r} is no {side}put",
                )
            found.append(port)
        inp, out = found
        groups = [self._group(port) for port in found]
        if groups[1] not in self._groups()[groups[0]]:
            raise _Refused(
                Code.INVALID_ARGUMENT,
                f"{name}: group {groups[0]} is not joined to {groups[1]}",
            )
        return CrossConnect(inp[1], out[1])

    def _disabled(self, wanted: gnmi.Tree | None = None) -> set[Port]:
        settings = self._settings if wanted is None else wanted
        return {
            port
            for port in self._every_port()
            if not self._port_config(port, settings)["enabled"]
        }

    def _port_config(
        self, port: Port, settings: gnmi.Tree | None = None
    ) -> gnmi.Tree:
        settings = self._settings if settings is None else settings
        components = gnmi.at(settings, "components", "component")
        config = gnmi.at(
            components, self._name(port), "ocp-ocs-port", "config"
        )
        return {"enabled": True} | config

    # --- names --------------------------------------------------------------------------------

    def _circuits(self) -> dict[str, SwitchedCircuit]:
        """By the name of their entry; those that nobody named have one as Patchlight's have."""
        return {
            each.name
            or f"patchlight-{each.directions[0].inp}-{each.directions[0].out}": each
            for each in self._device.matrix
        }

    def _config(self, name: str, c: CrossConnect) -> gnmi.Tree:
        return {
            "name": name,
            "input-port-name": self._name(("in", c.inp)),
            "output-port-name": self._name(("out", c.out)),
        }

    def _every_port(self) -> list[Port]:
        numbers = range(1, self._device.switch.ports + 1)
        return [(side, number) for side in SIDES for number in numbers]

    def _index(self, port: Port) -> int:
        side, number = port
        return number + self._device.switch.ports * (side == "out")

    def _name(self, port: Port) -> str:
        return f"port-{self._index(port)}"

    def _group(self, port: Port) -> str:
        side, number = port
        at = (number - 1) / self._device.switch.ports
        match self._device.faults.groups:
            case "any":
                return "all"
            case "three":
                return "ABC"[int(3 * at)]
            case "fabrics":
                letter = "A" if side == "in" else "B"
                return f"{letter}{int(_FABRICS * at) + 1}"
        return f"{side}puts"

    def _direction(self, group: str) -> str:
        if self._device.faults.groups == "fabrics":
            group = "inputs" if group.startswith("A") else "outputs"
        return _DIRECTIONS.get(group, "ANY")

    def _groups(self) -> dict[str, list[str]]:
        """Each group, with those that it may be joined to."""
        rows = _GROUPS[self._device.faults.groups].split()
        return {
            name: peers.split(",")
            for name, _, peers in (row.partition(":") for row in rows)
        }


@dataclass
class _Watched:
    """A subscription: its path, how often it is sampled, whether whole, and what was told last."""

    steps: Steps
    interval_s: float | None
    every: bool
    due: float = 0.0
    last: dict[Steps, Any] = field(default_factory=dict)


def _synced() -> Any:
    return gnmi.message("SubscribeResponse")(sync_response=True)


def _told(
    leaves: Mapping[Steps, Any],
    gone: Sequence[Steps],
) -> Iterator[Any]:
    """The messages that tell these, each leaf an update."""
    rows = [_update(at, value) for at, value in leaves.items()]
    for start in range(0, max(len(rows), bool(gone)), _LEAVES):
        yield gnmi.message("SubscribeResponse")(
            update={
                "timestamp": time.time_ns(),
                "update": rows[start : start + _LEAVES],
                "delete": [] if start else [_path(at) for at in gone],
            }
        )


def _operations(request: Any) -> Iterator[tuple[int, Any, Any]]:
    """Number, path and value of each, in the order in which they are done."""
    for path in request.delete:
        yield _DELETE, path, None
    for operation, updates in (
        (_REPLACE, request.replace),
        (_UPDATE, request.update),
    ):
        for each in updates:
            yield operation, each.path, each.val


def _steps(prefix: Any, path: Any) -> Steps:
    origin = path.origin or prefix.origin
    if origin not in _ORIGINS:
        raise _Refused(Code.INVALID_ARGUMENT, f"no origin {origin!r}")
    try:
        return gnmi.steps_of(prefix, path)
    except ValueError as error:
        raise _Refused(Code.INVALID_ARGUMENT, str(error)) from error


def _path(steps: Steps) -> Any:
    path = gnmi.message("Path")()
    for step in steps:
        if isinstance(step, str):
            path.elem.add(name=step)
        else:
            path.elem.add(name=step[0], key={_LISTS[step[0]]: step[1]})
    return path


def _update(steps: Steps, value: Any) -> Any:
    shown = _json(value)
    if isinstance(shown, dict) and steps:
        keys = gnmi.keys_of(steps)
        inside = _PORT_MODULE if "ocp-ocs-port" in keys else _MODULES[keys[0]]
        shown = {
            name if ":" in name else f"{inside}:{name}": inner
            for name, inner in shown.items()
        }
    return gnmi.message("Update")(
        path=_path(steps),
        val={"json_ietf_val": json.dumps(shown).encode()},
    )


def _json(value: Any) -> Any:
    """A part of the tree in JSON, with the names of modules where they begin."""
    if not isinstance(value, dict):
        return value
    return {
        f"{_BEGIN[name]}:{name}" if name in _BEGIN else name: (
            [_json(row) for row in inner.values()]
            if name in _LISTS
            else _json(inner)
        )
        for name, inner in value.items()
    }


def _select(tree: Any, steps: Steps) -> Iterator[tuple[Steps, Any]]:
    """What a tree has there, with its path; ``*`` and a missing key are any."""
    if not steps:
        yield (), tree
        return
    step, *rest = steps
    name, key = (step, "*") if isinstance(step, str) else step
    inner = tree.get(name) if isinstance(tree, dict) else None
    if inner is None:
        return
    if name not in _LISTS:
        for way, value in _select(inner, tuple(rest)):
            yield (name, *way), value
        return
    for each in [*inner] if key == "*" else [key]:
        if each in inner:
            for way, value in _select(inner[each], tuple(rest)):
                yield ((name, each), *way), value


def _leaves(value: Any) -> Iterator[tuple[Steps, Any]]:
    if not isinstance(value, dict):
        yield (), value
        return
    for name, inner in value.items():
        if name in _LISTS:
            for key, row in inner.items():
                for way, leaf in _leaves(row):
                    yield ((name, key), *way), leaf
        else:
            for way, leaf in _leaves(inner):
                yield (name, *way), leaf


def _without(value: Any, name: str) -> Any:
    if not name or not isinstance(value, dict):
        return value
    return {k: _without(v, name) for k, v in value.items() if k != name}


def _check(tree: gnmi.Tree) -> None:
    """``ValueError`` for what cannot be written."""
    for keys, value in gnmi.leaves(tree):
        path = "".join(f"/{key}" for key in keys)
        if keys[0] != "optical-switch":
            # All else is in a list: without its key.
            keys = (*keys[:2], *keys[3:])
        kind = _WRITABLE.get("".join(f"/{key}" for key in keys))
        if kind is None:
            raise ValueError(f"{path} cannot be written")
        if type(value) is not kind:
            raise ValueError(f"{path} cannot be {value!r}")


async def _copy(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    changed: Any = bytes,
) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(changed(data))
            await writer.drain()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat()


# gRPC takes no Ed25519, and only that can be signed alike at each start: see ``http_server``.
CERTIFICATE = """-----BEGIN CERTIFICATE-----
MIIBXzCCAQagAwIBAgIBATAKBggqhkjOPQQDAjAqMSgwJgYDVQQDDB9lbXVsYXRl
ZCBvcHRpY2FsIGNpcmN1aXQgc3dpdGNoMCAXDTIwMDEwMTAwMDAwMFoYDzIxMjAw
MTAxMDAwMDAwWjAqMSgwJgYDVQQDDB9lbXVsYXRlZCBvcHRpY2FsIGNpcmN1aXQg
c3dpdGNoMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEvjghVv3Lze1yPtcra/x4
8KI8O4BU/c5AvleVF2lxX03uBqRa8kxxX0Lr8yNPkyCLgZ0kz9lhx52V6zwvZgi5
GqMbMBkwFwYDVR0RBBAwDoIMZW11bGF0ZWQtb2NzMAoGCCqGSM49BAMCA0cAMEQC
IGRVgKmHUJB6LMDi3iHmKL0Xii6o2NYdgTnISXGtNmR3AiBq/7D1EW45oYWME1/n
cr2gktWhFKMmLIDTYAKyVEPjKQ==
-----END CERTIFICATE-----
"""
"""Self-signed, of the name ``emulated-ocs``; its key is public."""


def _server_context() -> ssl.SSLContext:
    seed = hashlib.sha256(b"emulated optical circuit switch").digest()
    key = ec.derive_private_key(int.from_bytes(seed), ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["h2"])
    with tempfile.NamedTemporaryFile() as file:
        file.write(private + CERTIFICATE.encode())
        file.flush()
        context.load_cert_chain(file.name)
    return context
