"""Speaks gNMI with a device: over pinned TLS, one call at a time, and data as a tree.

A change that gets no answer raises ``OutcomeUnknown`` if any of it may have been sent; a read is
repeated once after a lost connection, then raises ``DeviceUnreachable``. gRPC cannot pin a
certificate, so it is read and checked first; then gRPC connects to whoever has its key, and nobody
else gets the password.

A tree has a dictionary for each container and list, by names without their module; a list has one
for each entry, by its key. A path is a tuple of names and of ``(list, key)``.
"""

import asyncio
import contextlib
import functools
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtensionOID, NameOID

from patchlight.controller.circuits import contract
from patchlight.controller.circuits.dialect import (
    DEFAULT_LINKS,
    Dialect,
    Session,
    shortened,
)
from patchlight.controller.circuits.protocols.http import (
    PINS_VARIABLE,
    DeviceNotTrusted,
    Trust,
)
from patchlight.controller.circuits.protocols.session import AlarmLog
from patchlight.testbed.errors import BadInput, PackageMissing

try:
    import grpc as grpc  # the emulated device has it from here, with this hint
    from google.protobuf import (
        descriptor_pb2,
        descriptor_pool,
        message_factory,
    )
except ImportError as missing:
    raise PackageMissing("gNMI", missing) from missing

log = logging.getLogger("patchlight.ocs.gnmi")

Steps = tuple[str | tuple[str, str], ...]
Tree = dict[str, Any]

_DESCRIPTORS = Path(__file__).with_name("gnmi_proto") / "gnmi.binpb"
_STEP = re.compile(r"/([^/\[]+)(?:\[[^=\]]+=([^\]]*)\])?")
METHODS = {
    "Capabilities": ("CapabilityRequest", "CapabilityResponse"),
    "Get": ("GetRequest", "GetResponse"),
    "Set": ("SetRequest", "SetResponse"),
    "Subscribe": ("SubscribeRequest", "SubscribeResponse"),
}
"""The messages of each method."""
_PACKAGE = "gnmi"
SERVICE = f"{_PACKAGE}.gNMI"
JSON = 0
JSON_IETF = 4
ON_CHANGE = 1
SAMPLE = 2


@functools.cache
def _messages() -> Mapping[str, Any]:
    # In a pool of their own: another package may have messages of the same names.
    files = descriptor_pb2.FileDescriptorSet.FromString(
        _DESCRIPTORS.read_bytes()
    ).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    classes: Mapping[str, Any] = message_factory.GetMessageClassesForFiles(
        [files[-1].name], pool
    )
    return classes


def message(name: str) -> Any:
    """The class of a message of gNMI."""
    return _messages()[f"{_PACKAGE}.{name}"]


def parsed_path(text: str) -> Steps:
    """``/a/b[name=c]`` → ``("a", ("b", "c"))``."""
    return tuple(
        name if key is None else (name, key)
        for name, key in (
            (match[1], match[2]) for match in _STEP.finditer(text)
        )
    )


def path_of(steps: Steps, key: str = "name", origin: str = "") -> Any:
    """The message of a path; ``key`` is the name of its lists' keys."""
    elems = [
        {"name": step}
        if isinstance(step, str)
        else {"name": step[0], "key": {key: step[1]}}
        for step in steps
    ]
    return message("Path")(elem=elems, origin=origin)


def steps_of(*paths: Any) -> Steps:
    """A path from the messages of its prefix and of itself. ``ValueError`` for two keys."""
    steps: list[str | tuple[str, str]] = []
    for elem in (elem for path in paths for elem in path.elem):
        name = _bare(elem.name)
        if len(elem.key) > 1:
            raise ValueError(f"{name} has {len(elem.key)} keys")
        steps += [(name, key) for key in elem.key.values()] or [name]
    return tuple(steps)


def keys_of(steps: Steps) -> list[str]:
    """The keys that lead there in a tree."""
    keys: list[str] = []
    for step in steps:
        keys += [step] if isinstance(step, str) else step
    return keys


def _bare(name: str) -> str:
    return name.rpartition(":")[2]


def plain(
    value: Any, keys: Sequence[str] = ("name", "peer-name", "id")
) -> Any:
    """A JSON value as a tree; a list of objects without any of ``keys`` stays as it is."""
    if isinstance(value, dict):
        return {_bare(name): plain(inner) for name, inner in value.items()}
    if not isinstance(value, list):
        return value
    rows = [plain(row) for row in value]
    for key in keys:
        if all(isinstance(r, dict) and key in r for r in rows):
            return {str(row[key]): row for row in rows}
    return rows


def put(tree: Tree, keys: Sequence[str], value: Any) -> None:
    """Merge a value into the tree there. ``ValueError`` if a leaf is in the way."""
    if not keys:
        for name, part in value.items():
            put(tree, (name,), part)
        return
    *way, last = keys
    for key in way:
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise ValueError(f"{key} is a leaf, {tree!r}")
    there = tree.get(last)
    if isinstance(value, dict) and isinstance(there, dict):
        put(there, (), value)
    else:
        tree[last] = value


def at(tree: Any, *keys: str) -> Tree:
    """The container or list there; an empty one if there is none."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree if isinstance(tree, dict) else {}


def leaves(
    value: Any, keys: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each leaf of a tree, with the keys that lead there."""
    if not isinstance(value, dict):
        yield keys, value
        return
    for name, inner in value.items():
        yield from leaves(inner, (*keys, name))


def value_of(typed: Any) -> Any:
    """What a ``TypedValue`` holds, as a tree; ``ValueError`` if it is of no kind that we read."""
    kind = typed.WhichOneof("value")
    if kind in ("json_ietf_val", "json_val"):
        return plain(json.loads(getattr(typed, kind)))
    value = getattr(typed, kind) if kind else None
    if not isinstance(value, (str, bool, int, float)):
        raise ValueError(f"a value of the kind {kind}")
    return value


@dataclass(frozen=True)
class GnmiDialect(Dialect):
    """What every call takes.

    ``verify``: see ``HttpDialect``. ``origin``: of each path. ``sample_s``: how often the device
    sends power and counters. ``models``: words of the models that the device must have.
    """

    verify: str = "first-use"
    origin: str = ""
    sample_s: float = 10.0
    models: str = ""


_UPDATES_A_S = 1000
_WORDS_KEPT = 300
_AGAIN_S = 10.0
_OPTIONS = (
    # Another channel to the same device may be waiting to try again.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
_REFUSALS = (
    "ABORTED",
    "ALREADY_EXISTS",
    "FAILED_PRECONDITION",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "OUT_OF_RANGE",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "UNIMPLEMENTED",
)


class GnmiClient:
    """One device. All methods belong to one event loop.

    ``on_change`` and ``sampled`` are the paths that it tells of unasked, each leaf to ``heard``, at
    most 1,000 a second: the rest waits at the device.
    """

    def __init__(self, session: Session, dialect: GnmiDialect) -> None:
        self._session = session
        self._dialect = dialect
        host = f"[{session.host}]" if ":" in session.host else session.host
        self._address = f"{host}:{session.port}"
        self._trust = Trust(self._address, dialect.verify)
        self._login = (
            ("username", session.user),
            ("password", session.password),
        )
        if not all(
            text.isascii() and text.isprintable() for _, text in self._login
        ):
            raise BadInput(
                f"{session.name}: gRPC carries only printable ASCII in a user's name and password",
                hint="give the device's user another password",
            )
        self._lock = asyncio.Lock()
        self._channel: grpc.aio.Channel | None = None
        self._calls: dict[str, Any] = {}
        self._encoding = JSON_IETF
        self._following: asyncio.Task[None] | None = None
        self.alarms = AlarmLog()
        self.links = DEFAULT_LINKS
        self.connections = 0
        self.on_change: Sequence[Steps] = ()
        self.sampled: Sequence[Steps] = ()
        self.heard: Callable[[tuple[str, ...], Any], None] = lambda *_: None

    async def open(self) -> None:
        """Connect, and check that the device has the models."""
        async with self._lock:
            await self._ready()

    async def close(self) -> None:
        """Close the connection. Idempotent; the next call reconnects."""
        async with self._lock:
            await self._drop()

    async def hear(self) -> tuple[contract.Alarm, ...]:
        """What the device told, oldest first."""
        return self.alarms.all

    async def get(self, *paths: Steps) -> Tree:
        """What the device has at these paths, in one tree from the root."""
        request = message("GetRequest")(
            path=[self._path(steps) for steps in paths],
            encoding=self._encoding,
        )
        shown = shortened(
            f"Get {', '.join('/'.join(keys_of(p)) for p in paths)}"
        )
        answer = await self._call("Get", request, shown)
        tree: Tree = {}
        try:
            for told in answer.notification:
                for update in told.update:
                    keys = keys_of(steps_of(told.prefix, update.path))
                    put(tree, keys, value_of(update.val))
        except (ValueError, RecursionError) as error:
            raise self.nonsense(shown, str(error)) from error
        return tree

    async def change(
        self,
        deletes: Iterable[Steps],
        updates: Mapping[Steps, Mapping[str, Any]],
    ) -> None:
        """One ``Set``: the device does all of it or nothing."""
        kind = "json_val" if self._encoding == JSON else "json_ietf_val"
        request = message("SetRequest")(
            delete=[self._path(steps) for steps in deletes],
            update=[
                {
                    "path": self._path(steps),
                    "val": {kind: json.dumps(value).encode()},
                }
                for steps, value in updates.items()
            ],
        )
        shown = (
            f"Set (delete {len(request.delete)}, update {len(request.update)})"
        )
        await self._call(
            "Set",
            request,
            shown,
            changes=True,
        )

    def shown(self, text: str) -> str:
        """A text of the device for people: no password, nothing that controls a terminal."""
        return self._session.masked(text)[:_WORDS_KEPT]

    def nonsense(self, command: str, answer: str) -> contract.DeviceRefused:
        """The error for an invalid answer."""
        words = self.shown(answer)
        return contract.DeviceRefused(
            f"{self._session.name} answered {command} with an invalid value: {words}",
            words=words,
            hint="if its model differs, correct the driver's dialect",
        )

    def _path(self, steps: Steps) -> Any:
        return path_of(steps, origin=self._dialect.origin)

    async def _call(
        self,
        method: str,
        request: Any,
        shown: str,
        *,
        changes: bool = False,
    ) -> Any:
        name = self._session.name
        retried = False
        async with self._lock:
            while True:
                await self._ready()
                log.debug("%s < %s", name, shown)
                try:
                    return await self._once(method, request)
                except grpc.aio.AioRpcError as error:
                    refusal = self._refusal(error, shown)
                    if refusal is not None:
                        raise refusal from error
                    is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                    await self._drop()
                    words = self._words(error)
                    if is_late:
                        words = (
                            "no answer within "
                            f"{self._session.timeouts.answer_s:g} s"
                        )
                    if changes:
                        raise contract.outcome_unknown(
                            f"{name}: {shown} was sent, then {words}: the result is unknown",
                            is_late=is_late,
                        ) from error
                    if retried or is_late:
                        raise contract.DeviceUnreachable(
                            f"{name} at {self._address}: no reply to {shown}: {words}"
                        ) from error
                    retried = True

    async def _once(self, method: str, request: Any) -> Any:
        answer = await self._calls[method](
            request,
            metadata=self._login,
            timeout=self._session.timeouts.answer_s,
        )
        if answer is None:
            # What cannot be parsed; gRPC has logged why.
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.INTERNAL,
                grpc.aio.Metadata(),
                grpc.aio.Metadata(),
                "the answer is damaged",
            )
        return answer

    def _words(self, error: grpc.aio.AioRpcError) -> str:
        code = error.code().name
        if code == "UNAVAILABLE":
            return "the connection closed"
        details = " ".join((error.details() or "").split())
        return self.shown(f"{code}: {details}")

    def _refusal(
        self, error: grpc.aio.AioRpcError, shown: str
    ) -> Exception | None:
        """The device's refusal; ``None`` if what it did is unknown."""
        words = self._words(error)
        code = error.code()
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return self._session.login_refused(words)
        if code.name not in _REFUSALS:
            return None
        return contract.DeviceRefused(
            f"{self._session.name} refused {shown}: {words}",
            code=code.name,
            words=words,
        )

    async def _ready(self) -> None:
        """Connect if needed; nothing but the TLS handshake precedes the check of who answers."""
        if self._channel is not None:
            return
        self.connections += 1
        certificate = await self._certificate()
        credentials = grpc.ssl_channel_credentials(
            certificate.public_bytes(Encoding.PEM)
        )
        name = ("grpc.ssl_target_name_override", _name_in(certificate))
        longest = (
            "grpc.min_reconnect_backoff_ms",
            int(self._session.timeouts.connect_s * 1000),
        )
        self._channel = channel = grpc.aio.secure_channel(
            self._address,
            credentials,
            (*_OPTIONS, name, longest),
        )
        for method, (asks, answers) in METHODS.items():
            streams = method == "Subscribe"
            make = channel.stream_stream if streams else channel.unary_unary
            self._calls[method] = make(
                f"/{SERVICE}/{method}",
                request_serializer=message(asks).SerializeToString,
                response_deserializer=message(answers).FromString,
            )
        try:
            offered = await self._once(
                "Capabilities", message("CapabilityRequest")()
            )
            self._check_offer(offered)
        except BaseException as error:
            await self._drop()
            if isinstance(error, grpc.aio.AioRpcError):
                refusal = self._refusal(error, "Capabilities")
                raise refusal or self._unreachable(error) from error
            raise
        if self.on_change or self.sampled:
            self._following = asyncio.create_task(self._follow())

    def _check_offer(self, offered: Any) -> None:
        models = {model.name for model in offered.supported_models}
        if lacks := set(self._dialect.models.split()) - models:
            raise contract.DeviceRefused(
                f"{self._session.name} has no model {', '.join(sorted(lacks))}: it offers "
                f"{self.shown(', '.join(sorted(models))) or 'none'}",
                words="UNIMPLEMENTED: no such model",
                hint="if it has the same model under another name, correct 'models' in the "
                "dialect",
            )
        encodings = offered.supported_encodings
        self._encoding = JSON_IETF
        if JSON_IETF not in encodings and JSON in encodings:
            self._encoding = JSON

    async def _drop(self) -> None:
        following = self._following
        channel = self._channel
        self._following = self._channel = None
        if following is not None:
            following.cancel()
            await asyncio.wait([following])
        if channel is not None:
            await channel.close()

    async def _certificate(self) -> x509.Certificate:
        """The device's, checked by the dialect's rule."""
        session = self._session
        try:
            context = self._trust.context()
            context.set_alpn_protocols(["h2"])
            async with asyncio.timeout(session.timeouts.connect_s):
                _, writer = await asyncio.open_connection(
                    session.host,
                    session.port,
                    ssl=context,
                )
            shown = writer.get_extra_info("ssl_object").getpeercert(True)
            writer.transport.abort()
            return x509.load_der_x509_certificate(shown)
        except (OSError, ValueError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> contract.DeviceUnreachable:
        name = self._session.name
        if refused := self._trust.refused:
            return DeviceNotTrusted(
                f"nothing was sent to {name}: {refused}",
                hint="if the device has a new certificate, correct its line in that file "
                f"({PINS_VARIABLE}); if not, find out which service answers there",
            )
        words = (
            error.details()
            if isinstance(error, grpc.aio.AioRpcError)
            else str(error)
        )
        words = (
            self.shown(words or "")
            or f"no answer in {self._session.timeouts.connect_s:g} s"
        )
        return contract.DeviceUnreachable(
            f"connecting to {name} at {self._address}: {words}",
            hint="check that the device is on and speaks gNMI over TLS there, and its address in "
            "the lab file",
        )

    async def _follow(self) -> None:
        """Hear what the device tells unasked, as long as it is connected."""
        nanoseconds = int(self._dialect.sample_s * 1e9)
        request = message("SubscribeRequest")(
            subscribe={
                "encoding": self._encoding,
                "subscription": [
                    {
                        "path": self._path(steps),
                        "mode": mode,
                        "sample_interval": nanoseconds * (mode == SAMPLE),
                    }
                    for mode, paths in (
                        (ON_CHANGE, self.on_change),
                        (SAMPLE, self.sampled),
                    )
                    for steps in paths
                ],
            }
        )
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(
                grpc.aio.AioRpcError, asyncio.InvalidStateError
            ):
                call = self._calls["Subscribe"](metadata=self._login)
                await call.write(request)
                begun = loop.time()
                count = 0
                async for answer in call:
                    count += self._hear(answer)
                    if count >= _UPDATES_A_S:
                        await asyncio.sleep(begun + 1.0 - loop.time())
                    if loop.time() >= begun + 1.0:
                        begun = loop.time()
                        count = 0
            # A device that cannot tell this is asked again from time to time.
            await asyncio.sleep(_AGAIN_S)

    def _hear(self, answer: Any) -> int:
        updates = [] if answer is None else answer.update.update
        for update in updates:
            try:
                keys = keys_of(steps_of(answer.update.prefix, update.path))
                for leaf, value in leaves(value_of(update.val), tuple(keys)):
                    self.heard(leaf, value)
            except (TypeError, ValueError, RecursionError) as error:
                log.debug(
                    "%s sent invalid data: %s", self._session.name, error
                )
        return len(updates)


def _name_in(certificate: x509.Certificate) -> str:
    """A name that a certificate is for: gRPC checks one, though the certificate is known."""
    with contextlib.suppress(x509.ExtensionNotFound):
        names = certificate.extensions.get_extension_for_oid(
            ExtensionOID.SUBJECT_ALTERNATIVE_NAME
        ).value
        for name in names:  # type: ignore[attr-defined]
            if isinstance(name, (x509.DNSName, x509.IPAddress)):
                return str(name.value).replace("*", "any")
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(common[0].value) if common else ""
