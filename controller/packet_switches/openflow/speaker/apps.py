"""Runs OpenFlow applications on the chosen engine: Patchlight's and the user's.

Import it only after an engine was chosen. It replaces ``ryu-manager``, which OS-Ken lacks and which
cannot report a used port or select a class of a module.
"""

import importlib
import importlib.util
import inspect
import os
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from ryu import cfg
from ryu.base import app_manager
from ryu.controller import controller, ofp_event
from ryu.controller.handler import (
    CONFIG_DISPATCHER,
    DEAD_DISPATCHER,
    MAIN_DISPATCHER,
    set_ev_cls,
)
from ryu.lib import hub
from ryu.ofproto import ofproto_v1_3 as ofp

from patchlight.controller.packet_switches.openflow.speaker.switch import (
    port_of,
)
from patchlight.controller.packet_switches.openflow.speaker.switch_registry import (
    SwitchRegistry,
)
from patchlight.testbed.errors import BadInput

# Message types of the handshake and of keeping a connection alive.
_HELLO = 0
_ERROR = 1
_ECHO_REQUEST = 2
_ECHO_REPLY = 3
_FEATURES_REQUEST = 5
_HANDSHAKE = {
    _HELLO,
    _ERROR,
    _ECHO_REQUEST,
    _ECHO_REPLY,
    _FEATURES_REQUEST,
}

_PORT_CHANGES = {
    ofp.OFPPR_ADD: "added",
    ofp.OFPPR_DELETE: "removed",
    ofp.OFPPR_MODIFY: "changed",
}
_Handler = TypeVar("_Handler", bound=Callable[..., None])


def run_apps(
    listener: socket.socket,
    registry: SwitchRegistry,
    user_apps: tuple[str, ...],
) -> None:
    """Load and start every application; then switches are accepted.

    ``BadInput`` names a user's application that cannot be loaded.
    """
    address, port = listener.getsockname()[:2]
    cfg.CONF(
        args=[],
        project="patchlight",
        default_config_files=[],
    )
    overrides = {
        "ofp_listen_host": address,
        "ofp_tcp_listen_port": port,
        # A busy switch may be slow to read; a dead one answers no echo.
        "socket_timeout": 30.0,
        "echo_request_interval": 5.0,
        "maximum_unreplied_echo_requests": 3,
    }
    for option, value in overrides.items():
        cfg.CONF.set_override(option, value)
    _listen_through(listener, registry)
    _guard(registry)
    _count_received(registry)

    manager = _Apps()
    manager.load_apps(
        [
            "patchlight.controller.packet_switches.openflow.speaker.apps:Patchlight"
        ]
    )
    for name in user_apps:
        with _blaming(name):
            manager.load_apps([name])
    with _blaming(", ".join(user_apps)):
        manager.instantiate_apps(
            **manager.create_contexts(),
            patchlight=registry,
        )
    hub.spawn(registry.tell_traffic)
    _serve_http(manager)


class _Apps(app_manager.AppManager):  # type: ignore[misc]
    """Accepts ``module:Class`` and ``file.py:Class`` as well as the engine's module names."""

    def load_app(self, name: str) -> Any:
        if ":" not in name:
            return super().load_app(name)
        return _load_class(name)


def _load_class(name: str) -> Any:
    where, _, class_name = name.rpartition(":")
    module = (
        _load_file(Path(where))
        if where.endswith(".py")
        else importlib.import_module(where)
    )
    app = getattr(module, class_name, None)
    if not (inspect.isclass(app) and issubclass(app, app_manager.RyuApp)):
        apps = [
            class_name
            for class_name, app in inspect.getmembers(module, inspect.isclass)
            if issubclass(app, app_manager.RyuApp)
            and app.__module__ == module.__name__
        ]
        raise BadInput(
            f"{where} has no OpenFlow application {class_name!r}",
            hint=f"subclasses of ryu.base.app_manager.RyuApp: {', '.join(apps) or 'none'}",
        )
    return app


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise BadInput(f"file {path} not found")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.append(str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module


@contextmanager
def _blaming(names: str) -> Iterator[None]:
    """Convert any exception of the user's code to an error that says what and where."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise BadInput(
            f"cannot load the OpenFlow application {names or 'Patchlight'}: "
            f"{type(error).__name__}: {error} ({os.path.relpath(last.filename)}:{last.lineno})",
            hint="expected module:Class or file.py:Class; the class must speak OpenFlow 1.3 and "
            "import under the chosen engine (OS-Ken has no ryu.app: try --engine ryu)",
        ) from error


def _listen_through(listener: socket.socket, registry: SwitchRegistry) -> None:
    """Make the engine accept switches from ``listener`` instead of opening a port."""
    from eventlet.greenio import GreenSocket

    class Server:
        def __init__(
            self,
            _address: object,
            handle: Any,
            **_ssl: object,
        ) -> None:
            self._server = GreenSocket(listener)
            self._handle = handle

        def serve_forever(self) -> None:
            while True:
                connection, address = self._server.accept()
                hub.spawn(self._serve, connection, address)

        def _serve(self, connection: Any, address: Any) -> None:
            # The handshake has its own thread: a slow peer blocks nobody.
            if (let_in := registry.let_in(connection, address)) is not None:
                self._handle(let_in, address)

    controller.StreamServer = Server


def _guard(registry: SwitchRegistry) -> None:
    """Send only the handshake to a switch that is not in the lab file or is connected twice.

    This applies to all applications. Without the port description that the engine would request
    next, such a switch is never visible to applications.
    """

    # Patch the method, because the engine's `super` calls look the class up by name.
    send = controller.Datapath.send

    def guarded(
        datapath: Any,
        message: bytes,
        *args: Any,
        **options: Any,
    ) -> Any:
        if datapath.id is None or registry.may_be_told(datapath):
            registry.said(datapath, message)
            return send(
                datapath,
                message,
                *args,
                **options,
            )
        (kind,) = struct.unpack_from("!xB", message)
        return (
            send(
                datapath,
                message,
                *args,
                **options,
            )
            if kind in _HANDSHAKE
            else False
        )

    controller.Datapath.send = guarded


def _count_received(registry: SwitchRegistry) -> None:
    """Let the registry see each message for which the engine makes an event: all."""
    event_of = ofp_event.ofp_msg_to_ev

    def counted(message: Any) -> Any:
        registry.heard(message)
        return event_of(message)

    ofp_event.ofp_msg_to_ev = counted


def _serve_http(manager: Any) -> None:
    wsgi = sys.modules.get("ryu.app.wsgi")
    service = wsgi.start_service(manager) if wsgi is not None else None
    if service:
        hub.spawn(service)


def _on(events: Any, states: Any) -> Callable[[_Handler], _Handler]:
    decorate: Callable[[_Handler], _Handler] = set_ev_cls(events, states)
    return decorate


class Patchlight(app_manager.RyuApp):  # type: ignore[misc]
    """Tells ``SwitchRegistry`` of switches, ports, replies and errors."""

    OFP_VERSIONS = (ofp.OFP_VERSION,)

    def __init__(
        self,
        *args: Any,
        patchlight: SwitchRegistry,
        **contexts: Any,
    ) -> None:
        super().__init__(*args, **contexts)
        self._registry = patchlight

    @_on(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def on_features(self, event: Any) -> None:
        """A switch reported its datapath id."""
        self._registry.features(event.msg.datapath, event.msg.datapath_id)

    @_on(ofp_event.EventOFPStateChange, [MAIN_DISPATCHER, DEAD_DISPATCHER])
    def on_state(self, event: Any) -> None:
        """A switch is ready, or gone."""
        if event.state == MAIN_DISPATCHER:
            self._registry.up(event.datapath)
        else:
            self._registry.down(event.datapath)

    @_on(ofp_event.EventOFPPortStatus, MAIN_DISPATCHER)
    def on_port(self, event: Any) -> None:
        """A port of a switch was added, removed or changed."""
        message = event.msg
        if message.desc.port_no <= ofp.OFPP_MAX:
            change = _PORT_CHANGES.get(message.reason, "changed")
            self._registry.port(
                message.datapath, port_of(message.desc), change
            )

    @_on(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def on_frame(self, event: Any) -> None:
        """A switch sent a frame to the controller."""
        message = event.msg
        port = message.match.get("in_port", 0)
        self._registry.frame(
            message.datapath,
            port,
            message.cookie,
            bytes(message.data),
        )

    @_on(
        [
            ofp_event.EventOFPBarrierReply,
            ofp_event.EventOFPEchoReply,
            ofp_event.EventOFPErrorMsg,
            ofp_event.EventOFPFlowStatsReply,
            ofp_event.EventOFPGroupDescStatsReply,
            ofp_event.EventOFPGroupFeaturesStatsReply,
            ofp_event.EventOFPPortStatsReply,
            ofp_event.EventOFPPortDescStatsReply,
            ofp_event.EventOFPDescStatsReply,
        ],
        MAIN_DISPATCHER,
    )
    def on_reply(self, event: Any) -> None:
        """A switch answered: a barrier, an error, counters, or a description."""
        if (switch := self._registry.of(event.msg.datapath)) is not None:
            switch.on_reply(event.msg)
