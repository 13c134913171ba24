"""Forks synthetic workers from a process that has already imported their program, to start faster.

``python -m patchlight.agents.workers.forking --socket PATH`` forks one worker per connection to its
root-only Unix socket. The request is a ``ForkRequest`` as a line of JSON; the reply has the
keeper's process id and start time, or an error. A forked worker has the same user, rights, limits,
namespaces, environment, files and keeper as one started by ``agents/workers/process.py``.

The process has one thread. At the first request it restarts itself with only what workers need.
"""

import argparse
import ctypes
import functools
import gc
import importlib.util
import json
import os
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from patchlight.testbed.errors import PatchlightError, reason
from patchlight.testbed.linux import namespaces, sockets
from patchlight.testbed.linux.processes import (
    ARGUMENTS,
    ENVIRONMENT,
    process_start,
    show,
)

_DEADLINE_S = 30.0
_LONGEST_ORDER = 1 << 20
# Space for the workers' displayed command line: the last argument, and a variable.
_ROOM = " " * 16_000
_SET_DUMPABLE = 4
_DROP_BOUND = 24
_NO_NEW_PRIVILEGES = 38
_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)
_ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


class RightsKept(PatchlightError):
    """The kernel refused to drop a right."""


class NotForked(PatchlightError):
    """A worker could not be forked."""


@dataclass(
    frozen=True,
    slots=True,
)
class ForkRequest:
    """A worker to fork into its ``folder`` and ``namespace`` (a path). ``processes``: how many its
    user may have (``None``: no limit), ``groups``: the files of its cgroups, ``cpus``: where it may
    run (empty: anywhere), ``arguments``: those shown for the program, ``--task FILE`` last."""

    folder: str
    namespace: str
    uid: int
    gid: int
    processes: int | None
    groups: Sequence[str]
    cpus: Sequence[int]
    environment: Mapping[str, str]
    arguments: Sequence[str]


def fork(path: Path, order: ForkRequest) -> tuple[int, int]:
    """Fork a worker. Returns its keeper's process id and start time (clock ticks since boot).
    ``OSError`` if no process listens at ``path``; ``NotForked`` says why there is no worker."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_DEADLINE_S)
        connection.connect(str(path))
        try:
            connection.sendall(json.dumps(asdict(order)).encode() + b"\n")
            answer = json.loads(
                connection.makefile().readline() or '{"error": "it ended"}'
            )
        except (OSError, ValueError) as exc:
            raise NotForked(f"it does not answer: {reason(exc)}") from exc
    if "error" in answer:
        raise NotForked(str(answer["error"]))
    return int(answer["pid"]), int(answer["started"])


@functools.cache
def numpy_folder() -> str | None:
    """The folder of Python's path that contains NumPy, without importing it."""
    found = importlib.util.find_spec("numpy")
    return (
        str(Path(found.origin).parent.parent)
        if found and found.origin
        else None
    )


def main() -> None:
    """Fork workers until the process is ended."""
    parser = argparse.ArgumentParser(
        prog="patchlight.agents.workers.forking",
        description=__doc__,
    )
    parser.add_argument(
        "--socket",
        type=Path,
        help="Unix socket to listen at",
    )
    parser.add_argument(
        "--lab",
        type=Path,
        help="the lab file, shown in process lists",
    )
    parser.add_argument(
        "--listener",
        type=int,
        help=argparse.SUPPRESS,
    )
    parser.add_argument(
        "room",
        nargs="?",
        help=argparse.SUPPRESS,
    )
    options = parser.parse_args()
    if options.listener is None:
        _begin_anew_when_wanted(options.socket)
    _fork_all(socket.socket(fileno=options.listener))


def _begin_anew_when_wanted(path: Path) -> NoReturn:
    listener = sockets.bind_unix(path, "process that forks workers")
    listener.listen(sockets.BACKLOG)
    select.select([listener], [], [])
    folders = filter(
        None, [str(Path(__file__).absolute().parents[3]), numpy_folder()]
    )
    listener.set_inheritable(True)
    # Skip packages' start-up code (.pth files), as for a worker's program.
    command = [
        sys.executable,
        "-sS",
        "-m",
        "patchlight.agents.workers.forking",
    ]
    command += ["--listener", str(listener.fileno()), _ROOM]
    more = {
        **_ONE_THREAD,
        "PYTHONPATH": ":".join(folders),
        "PATCHLIGHT_ROOM": _ROOM,
    }
    os.execve(sys.executable, command, {**os.environ, **more})


def _fork_all(listener: socket.socket) -> NoReturn:
    show(ARGUMENTS, sys.orig_argv[:-1])
    from patchlight.agents.training import __main__, trainer

    # NumPy imports these lazily.
    trainer.gradient(
        seed=0,
        rank=0,
        iteration=0,
        elements=1,
    )
    gc.freeze()  # Otherwise the first collection in each worker copies all this memory.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # do not keep zombies
    while True:
        connection, _ = listener.accept()
        with connection:
            if os.fork():
                continue
            listener.close()
            status = 1
            with suppress(BaseException):
                status = _become_keeper(connection, __main__.main)
            os._exit(status)


def _become_keeper(connection: socket.socket, train: Any) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.settimeout(_DEADLINE_S)
    line = connection.makefile().readline(_LONGEST_ORDER)
    if not line:  # a probe that only checked whether this process is alive
        return 0
    try:
        order = ForkRequest(**json.loads(line))
        _confine(order)
        pid = os.getpid()
        answer: dict[str, Any] = {"pid": pid, "started": process_start(pid)}
    except (OSError, PatchlightError, TypeError, ValueError) as exc:
        answer = {"error": reason(exc)}
    connection.sendall(json.dumps(answer).encode() + b"\n")
    connection.close()
    return 1 if "error" in answer else _keep(order, train)


def _confine(order: ForkRequest) -> None:
    os.setsid()
    for group in order.groups:
        with open(group, "w") as file:
            file.write("0")
    if order.cpus:
        os.sched_setaffinity(0, order.cpus)
    namespaces.enter(order.namespace)
    if order.processes is not None:
        resource.setrlimit(
            resource.RLIMIT_NPROC, (order.processes, order.processes)
        )
    os.chdir(order.folder)
    give_up(order.uid, order.gid)
    os.environ.clear()
    os.environ.update(order.environment)
    show(
        ENVIRONMENT,
        (f"{name}={value}" for name, value in order.environment.items()),
    )
    show(ARGUMENTS, ["patchlight-keeper", order.folder, *order.arguments])
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(
        "output.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666
    )
    for number, descriptor in enumerate((null, output, output)):
        os.dup2(descriptor, number)
    os.close(null)
    os.close(output)


def give_up(uid: int, gid: int) -> None:
    """Become this user permanently, without other groups and capabilities, even as root: like
    ``setpriv --reuid --regid --clear-groups --no-new-privs --bounding-set=-all`` does."""
    try:
        with open("/proc/sys/kernel/cap_last_cap") as file:
            last = int(file.read())
        for capability in range(last + 1):
            _prctl(_DROP_BOUND, capability)
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
        # Effective, permitted and inheritable, 2 x 32 of each.
        none = (ctypes.c_uint32 * 6)()
        if _libc.capset(header, none):
            raise OSError(ctypes.get_errno(), "capset")
        _prctl(_NO_NEW_PRIVILEGES, 1)
        # As after exec: its files in /proc belong to this user.
        _prctl(_SET_DUMPABLE, 1)
    except OSError as error:
        raise RightsKept(
            f"dropping privileges: {os.strerror(error.errno or 0)}"
        ) from error


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(
        option,
        ctypes.c_ulong(value),
        zero,
        zero,
        zero,
    ):
        raise OSError(ctypes.get_errno(), "prctl")


def _keep(order: ForkRequest, train: Any) -> int:
    result = open("exit", "w")  # before the worker can put a pipe there  # noqa: SIM115
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    program = os.fork()
    if not program:
        result.close()
        for number in (
            signal.SIGINT,
            signal.SIGQUIT,
        ):  # as a shell does for background jobs
            signal.signal(number, signal.SIG_IGN)
        _run(order, train)
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    _, status = os.waitpid(program, 0)
    code = os.waitstatus_to_exitcode(status)
    code = 128 - code if code < 0 else code
    with result:
        result.write(f"{code}\n")
    return code


def _pass_on(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    os.killpg(0, number)


def _run(order: ForkRequest, train: Any) -> NoReturn:
    code = 1
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        show(ARGUMENTS, order.arguments)
        sys.argv = ["patchlight.agents.training", *order.arguments[-2:]]
        code = train()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
