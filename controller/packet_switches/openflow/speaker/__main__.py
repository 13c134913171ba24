"""Runs the OpenFlow speaker, the only process with an OpenFlow engine.

It accepts packet switches over TCP and answers the controller on a Unix socket (``flowtable``). It
has no important state: if it dies, flows stay in the switches, and the next one reads and repairs
them.

The engine is Ryu 4.34 if it can be imported, else its maintained fork OS-Ken, on the eventlet hub.
Applications are written against ``ryu`` and run on both: the other engine's name is an alias.
"""

import argparse
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import logging
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from patchlight.controller.packet_switches.openflow.flowtable import (
    Message,
    SpeakerOptions,
    encode,
)
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.linux import deploy_file, namespaces
from patchlight.testbed.linux.sockets import PortTaken, listen
from patchlight.testbed.logs import log_to_stderr

LOG = logging.getLogger("patchlight.openflow")
_PATIENCE_S = 2.0
PACKAGES = {"ryu": "ryu", "os-ken": "os_ken"}
# The two engines name only this base class differently.
_BASE_CLASSES = {"ryu": "RyuApp", "os-ken": "OSKenApp"}
_INSTALL = {
    # As an address: pip takes what is before a space for a path of its own.
    "ryu": f"PIP_CONSTRAINT={deploy_file('ryu-constraint.txt').as_uri()} pip install 'ryu==4.34' "
    "(it builds only with setuptools < 67.3)",
    "os-ken": "pip install os-ken",
}


class EngineMissing(PatchlightError):
    """No OpenFlow engine, or not the requested one, can be imported."""


def available() -> tuple[str, ...]:
    """The installed engines, best first. Imports neither."""
    return tuple(
        name
        for name, package in PACKAGES.items()
        if importlib.util.find_spec(package) is not None
    )


def choose(name: str | None = None) -> tuple[str, str]:
    """Import an engine (default: the first that works) and prepare it; returns name and version.

    Patches the process for eventlet. ``EngineMissing`` says how to install what is missing.
    """
    if name is not None and name not in PACKAGES:
        raise BadInput(
            f"{name!r} is not an OpenFlow engine: expected {' or '.join(PACKAGES)}"
        )
    there = available()
    if name is not None and name not in there:
        raise EngineMissing(
            f"the OpenFlow engine {name} is not installed",
            hint=f"install it: {_INSTALL[name]}"
            + (f"; or use {there[0]}, which is installed" if there else ""),
        )
    if not there:
        raise EngineMissing(
            "no OpenFlow engine is installed: neither ryu nor os_ken can be imported",
            hint=f"install one: {_INSTALL['os-ken']}; or {_INSTALL['ryu']}",
        )
    failed = []
    for each in (name,) if name else there:
        try:
            return _prepare(each)
        except EngineMissing as error:
            failed.append(error)
            LOG.warning("%s", error)
    raise failed[0]


def leave_setuptools_out() -> None:
    """Give Ryu the ``distutils`` class that it needs without importing setuptools."""
    if sys.version_info < (3, 12) and (
        shim := sys.modules.get("_distutils_hack")
    ):
        shim.remove_shim()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module("distutils.version")
        except ImportError:  # some systems omit it
            shim.add_shim()


def _prepare(name: str) -> tuple[str, str]:
    # OS-Ken's default, the native hub, never reports disconnected switches and dies silently of
    # exceptions in handlers.
    os.environ["OSKEN_HUB_TYPE"] = os.environ["RYU_HUB_TYPE"] = "eventlet"
    try:
        with warnings.catch_warnings():
            # Hide eventlet's warning that it is in maintenance mode.
            warnings.simplefilter("ignore")
            _load(name)
    except (
        Exception
    ) as error:  # libraries raise anything on an unsupported Python
        raise EngineMissing(
            f"importing the OpenFlow engine {name}: {type(error).__name__}: {error}",
            hint=f"reinstall it: {_INSTALL[name]}; or use an older Python, because eventlet may "
            "not run on this one",
        ) from error
    return name, importlib.metadata.version(name)


def _load(name: str) -> None:
    import eventlet.wsgi

    # Newer eventlets lack this name, which Ryu always imports.
    if not hasattr(eventlet.wsgi, "ALREADY_HANDLED"):
        eventlet.wsgi.ALREADY_HANDLED = []
    package = PACKAGES[name]
    importlib.import_module(f"{package}.lib.hub").patch(thread=False)
    # Before ``controller``: they import each other, and only this order works.
    app_manager = importlib.import_module(f"{package}.base.app_manager")
    base = getattr(app_manager, _BASE_CLASSES[name])
    for other_name, other in PACKAGES.items():
        if other_name != name:
            sys.meta_path.insert(0, _Alias(other, package))
            setattr(app_manager, _BASE_CLASSES[other_name], base)


class _Alias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, alias: str, package: str) -> None:
        self._alias = alias
        self._package = package
        self._specs: dict[str, importlib.machinery.ModuleSpec | None] = {}

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._alias and not fullname.startswith(
            self._alias + "."
        ):
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(
        self, spec: importlib.machinery.ModuleSpec
    ) -> ModuleType:
        module = importlib.import_module(
            self._package + spec.name[len(self._alias) :]
        )
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just replaced the spec of a module that was already loaded.
        alias = module.__spec__.name if module.__spec__ else ""
        module.__spec__ = self._specs.pop(alias, module.__spec__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the speaker until it is stopped or its parent has ended; returns the exit status."""
    program = "patchlight.controller.packet_switches.openflow.speaker"
    parser = argparse.ArgumentParser(
        prog=program,
        description=__doc__,
    )
    parser.add_argument(
        "options",
        type=SpeakerOptions.from_command,
        help="JSON, see SpeakerOptions.command",
    )
    options: SpeakerOptions = parser.parse_args(arguments).options
    log_to_stderr(logging.WARNING, "%(levelname)s %(name)s: %(message)s")
    try:
        _run(options)
    except PatchlightError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        pass
    return 0


def _run(options: SpeakerOptions) -> None:
    # Before any thread starts and any engine is loaded.
    if options.netns:
        namespaces.enter(options.netns)
    listener = _listen(options.listen)
    if not options.apps:
        # No names are looked up, and eventlet's resolver takes a third of the engine's start.
        os.environ["EVENTLET_NO_GREENDNS"] = "yes"
        leave_setuptools_out()
    # Imported objects are not garbage; collecting would take a tenth of the start.
    gc.disable()
    name, version = choose(options.engine)
    # Only now: these import the engine.
    from patchlight.controller.packet_switches.openflow.speaker.apps import (
        run_apps,
    )
    from patchlight.controller.packet_switches.openflow.speaker.server import (
        Handlers,
        SpeakerServer,
    )
    from patchlight.controller.packet_switches.openflow.speaker.switch_registry import (
        SwitchRegistry,
        TlsAuth,
    )

    address, port = listener.getsockname()[:2]
    about: Message = {
        "engine": name,
        "engine_version": version,
        "listen": f"[{address}]:{port}"
        if ":" in address
        else f"{address}:{port}",
        "pid": os.getpid(),
        "apps": list(options.apps),
    }
    registry = SwitchRegistry(
        frozenset(options.datapath_ids),
        lambda event: server.publish(event),
        count=options.counters,
        tls=TlsAuth(options.tls, options.datapath_ids)
        if options.tls
        else None,
    )
    server = SpeakerServer(options.socket, Handlers(registry, about))
    try:
        run_apps(listener, registry, options.apps)
        gc.freeze()
        gc.enable()
        sys.stdout.buffer.write(encode(about))
        sys.stdout.buffer.flush()
        _serve_until_told(server)
    finally:
        server.close()


def _listen(address: str) -> socket.socket:
    """Like ``listen``, but waits for the speaker of a controller that was just killed."""
    ends = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return listen(address)
        except PortTaken:
            if time.monotonic() > ends:
                raise
        time.sleep(0.05)


def _serve_until_told(server: Any) -> None:
    """Serve until SIGTERM, Ctrl-C, or the end of standard input (the parent)."""
    import eventlet
    from eventlet.event import Event
    from eventlet.hubs import trampoline

    stopped = Event()
    # An exception from a signal handler would end up in any green thread, and the engine swallows
    # it. A pipe wakes the right one.
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)

    def stop_after(descriptor: int) -> None:
        while True:
            trampoline(descriptor, read=True)
            if descriptor == woken or not os.read(descriptor, 4096):
                break
        if not stopped.ready():
            stopped.send()

    eventlet.spawn_n(stop_after, woken)
    eventlet.spawn_n(stop_after, sys.stdin.fileno())
    eventlet.spawn_n(server.serve_forever)
    stopped.wait()


if __name__ == "__main__":
    sys.exit(main())
