"""The OpenFlow speaker: the one process of Patchlight in which an OpenFlow engine runs.

``python -m patchlight.controller.openflow.speaker --socket PATH --listen 127.0.0.1:6653
--lab-datapaths 1,2`` accepts packet switches over TCP and serves ``protocol`` on a Unix
socket. It keeps nothing that matters: if it dies, flows stay in the switches, and whoever
starts it again reads and mends them.
"""

import argparse
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from patchlight.controller.openflow import speaker
from patchlight.controller.openflow.flowtable import Message, encode
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.sockets import PortTaken, listen
from patchlight.testbed.logs import log_to_stderr

_PATIENCE_S = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the speaker until it is told to stop; returns the process's exit status."""
    options = _parser().parse_args(arguments)
    log_to_stderr(logging.WARNING, "%(levelname)s %(name)s: %(message)s")
    try:
        _run(options)
    except PatchlightError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        pass
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="patchlight.controller.openflow.speaker", description=__doc__
    )
    parser.add_argument("--socket", type=Path, required=True, help="Unix socket to serve on")
    parser.add_argument("--listen", default="127.0.0.1:6653", help="host:port for switches")
    parser.add_argument("--netns", help="network namespace to listen in, like /run/netns/NAME")
    engines = tuple(speaker.PACKAGES)
    parser.add_argument("--engine", choices=engines, help="default: the first found")
    parser.add_argument(
        "--lab-datapaths", default="", help="datapath ids of the lab's switches, like 1,0x2"
    )
    parser.add_argument(
        "--ryu-app",
        action="append",
        default=[],
        metavar="module:Class",
        help="an application to run beside Patchlight's, or file.py:Class; may be given again",
    )
    parser.add_argument(
        "--tls", type=Path, metavar="FOLDER", help="let switches in over TLS only: certificates"
    )
    parser.add_argument("--lab", default="", help="with --tls: what the lab is called")
    parser.add_argument(
        "--switches", default="", help="with --tls: names of the switches with those datapath ids"
    )
    parser.add_argument(
        "--no-counters", action="store_true", help="do not read the switches' counters each second"
    )
    parser.add_argument(
        "--until-eof", action="store_true", help="stop when standard input ends: with the parent"
    )
    return parser


def _run(options: argparse.Namespace) -> None:
    datapath_ids = _datapath_ids(options.lab_datapaths)
    # Before any thread starts and any engine is loaded.
    if options.netns:
        namespaces.enter(options.netns)
    listener = _listen(options.listen)
    if not options.ryu_app:
        # We look up no names, and eventlet's way to do that is a third of the engine's start.
        os.environ["EVENTLET_NO_GREENDNS"] = "yes"
        speaker.leave_setuptools_out()
    # Nothing of what imports make is garbage: to look for it would be a tenth of the start.
    gc.disable()
    name, version = speaker.choose(options.engine)
    # Only now: these import the engine.
    from patchlight.controller.openflow.speaker.apps import run_apps
    from patchlight.controller.openflow.speaker.server import Handlers, SpeakerServer
    from patchlight.controller.openflow.speaker.switch_registry import SwitchRegistry, TlsAuth

    address, port = listener.getsockname()[:2]
    about: Message = {
        "engine": name,
        "engine_version": version,
        "listen": f"[{address}]:{port}" if ":" in address else f"{address}:{port}",
        "pid": os.getpid(),
        "apps": options.ryu_app,
    }
    tls = None
    if options.tls is not None:
        names = dict(zip(datapath_ids, options.switches.split(","), strict=True))
        tls = TlsAuth(options.tls, options.lab, names)
    registry = SwitchRegistry(
        frozenset(datapath_ids),
        lambda event: server.publish(event),
        count=not options.no_counters,
        tls=tls,
    )
    server = SpeakerServer(options.socket, Handlers(registry, about))
    try:
        run_apps(listener, registry, tuple(options.ryu_app))
        gc.freeze()
        gc.enable()
        sys.stdout.buffer.write(encode(about))
        sys.stdout.buffer.flush()
        _serve_until_told(server, options.until_eof)
    finally:
        server.close()


def _listen(address: str) -> socket.socket:
    """As ``listen``, with patience for the speaker of a controller that was just killed."""
    ends = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return listen(address)
        except PortTaken:
            if time.monotonic() > ends:
                raise
        time.sleep(0.05)


def _serve_until_told(server: Any, until_eof: bool) -> None:
    """Serve until SIGTERM, Ctrl-C or, if asked for, the end of standard input."""
    import eventlet
    from eventlet.event import Event
    from eventlet.hubs import trampoline

    stopped = Event()
    # An exception out of a signal handler would land in whichever green thread runs just then,
    # and the engine swallows what its threads raise. Through a pipe it wakes the one that waits.
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
    if until_eof:
        eventlet.spawn_n(stop_after, sys.stdin.fileno())
    eventlet.spawn_n(server.serve_forever)
    stopped.wait()


def _datapath_ids(text: str) -> list[int]:
    try:
        return [int(word, 0) for word in text.split(",") if word.strip()]
    except ValueError as error:
        raise BadInput(
            f"--lab-datapaths {text!r}: expected numbers with commas, like 1,0x2"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
