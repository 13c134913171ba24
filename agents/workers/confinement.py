"""Confines a worker's process: bubblewrap creates namespaces for processes, IPC, host name and
mounts, util-linux sets the user and drops capabilities, and libseccomp filters system calls. The
environment is fixed, so nothing of a job reaches these tools."""

import errno
import functools
import json
import os
import select
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from patchlight.agents.errors import LaunchError
from patchlight.agents.workers import keeper, programs
from patchlight.agents.workers.contract import WorkerLaunch
from patchlight.agents.workers.limits import WorkerUser
from patchlight.testbed.errors import reason
from patchlight.testbed.linux.processes import cpus_of
from patchlight.testbed.wire.worker_api import TorchTask

ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
"""Environment of everything that runs before the worker's program."""

# Emulated labs find their processes by it, even those that left their namespace.
_MARK = "PATCHLIGHT_RUN"
# Wait for the limits before forking: earlier children would escape them.
_WHEN_TOLD = 'read -r _ && exec "$@" </dev/null'
_DEADLINE_S = 30.0
_NOBODY = 65534
_NO_RIGHTS = ("--no-new-privs", "--bounding-set=-all", "--inh-caps=-all")
_APART = (
    "--unshare-pid",
    "--as-pid-1",
    "--unshare-ipc",
    "--unshare-uts",
    "--new-session",
)
_MADE_ANEW = ("proc", "dev", "run", "tmp")
# A mount of another program, say a container's, ended meanwhile (bubblewrap's issue 650).
_VANISHED = "Unable to apply mount flags"
# Root without capabilities could still write to most of /proc/sys.
_KERNEL_FILES = (
    "--proc",
    "/proc",
    "--ro-bind",
    "/proc/sys",
    "/proc/sys",
    "--dev",
    "/dev",
    "--perms",
    "1777",
    "--tmpfs",
    "/dev/shm",
)
_STATE = Path("/var/lib/patchlight")
# Needed by CUDA in addition to the GPU's device node.
_NVIDIA = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


# Like Docker's profile: calls that need missing capabilities or have been used to escape. io_uring
# would bypass this filter.
_REFUSED = (
    "mount",
    "umount",
    "umount2",
    "pivot_root",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "move_mount",
    "open_tree",
    "mount_setattr",
    "unshare",
    "setns",
    "bpf",
    "perf_event_open",
    "keyctl",
    "add_key",
    "request_key",
    "userfaultfd",
    "kexec_load",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "create_module",
    "query_module",
    "open_by_handle_at",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "iopl",
    "ioperm",
    "reboot",
    "swapon",
    "swapoff",
    "acct",
    "quotactl",
    "quotactl_fd",
    "settimeofday",
    "clock_settime",
    "clock_adjtime",
    "adjtimex",
    "stime",
    "vhangup",
    "nfsservctl",
    "uselib",
    "lookup_dcookie",
    "kcmp",
    "syslog",
    "sysfs",
    "ustat",
    "fanotify_init",
    "modify_ldt",
)
_NAMESPACE_FLAGS = (
    0x02000000,
    0x04000000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
    0x20000,
)
_PERSONALITY_NOW = 0xFFFFFFFF
_FAMILIES = 64
_FAMILIES_OF_WORKERS = {
    socket.AF_UNIX,
    socket.AF_INET,
    socket.AF_INET6,
    socket.AF_NETLINK,
}


@functools.cache
def refused_calls() -> bytes:
    """A seccomp filter for workers; ``RuntimeError`` or ``OSError`` without a recent libseccomp."""
    import pyseccomp as seccomp

    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    no = seccomp.ERRNO(errno.EPERM)
    for name in _REFUSED:
        rules.add_rule(no, name)
    for flag in _NAMESPACE_FLAGS:
        rules.add_rule(
            no,
            "clone",
            seccomp.Arg(
                0,
                seccomp.MASKED_EQ,
                flag,
                flag,
            ),
        )
    # A filter cannot read clone3's flags; the C library falls back to clone.
    rules.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    # Most other families ignore network namespaces or load kernel modules: vsock, Bluetooth, ALG.
    for family in {*range(_FAMILIES)} - _FAMILIES_OF_WORKERS:
        rules.add_rule(no, "socket", seccomp.Arg(0, seccomp.EQ, family))
    rules.add_rule(no, "socket", seccomp.Arg(0, seccomp.GE, _FAMILIES))
    # A keeper that is stopped by a tracer would never end. It is process 1 of the worker's own.
    for name, argument in (("ptrace", 1), ("process_vm_writev", 0)):
        rules.add_rule(no, name, seccomp.Arg(argument, seccomp.EQ, 1))
    rules.add_rule(
        no, "personality", seccomp.Arg(0, seccomp.NE, _PERSONALITY_NOW)
    )
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def check_possible() -> None:
    """Raise ``LaunchError``, naming what is missing, unless workers can be confined."""
    try:
        rules = refused_calls()
    except (ImportError, OSError, RuntimeError) as error:
        raise LaunchError(
            f"workers as processes need libseccomp: {reason(error)}",
            hint="apt install libseccomp2",
        ) from error
    nobody = WorkerUser(_NOBODY, _NOBODY, "nobody")
    with _readable(rules) as number:
        command = [
            _tool("bwrap"),
            *_APART,
            *_system_files(),
            "--seccomp",
            str(number),
        ]
        done = subprocess.run(
            [
                *command,
                "--",
                *_become(nobody, ["--nproc=1000"]),
                "true",
            ],
            env=ENVIRONMENT,
            pass_fds=[number],
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise LaunchError(
            f"confining workers with bubblewrap: {done.stderr.strip()}",
            hint="run the agent where root may create namespaces and mount /proc (containers "
            "must be privileged), or use --worker-kind docker",
        )


def begin(
    command: Sequence[str],
    launch: WorkerLaunch,
    user: WorkerUser,
    groups: Sequence[Path],
    rlimits: Mapping[str, int],
    code: Sequence[Path],
    tries: int = 5,
) -> tuple[subprocess.Popen[bytes], int]:
    """Start ``command`` confined, within its cgroups by the files ``groups`` and these ``rlimits``
    by name, seeing the folders ``code``. Returns the child and the worker's first process,
    whose end ends all others. Up to ``tries`` times if mounts of other programs end meanwhile."""
    limits = [f"--{name}={value}" for name, value in rlimits.items()]
    if launch.rdma_devices:
        limits.append("--memlock=unlimited")
    environment = ENVIRONMENT | (
        {_MARK: os.environ[_MARK]} if _MARK in os.environ else {}
    )
    log = launch.directory / keeper.OUTPUT
    with ExitStack() as stack:
        told, tell = os.pipe()
        said = stack.enter_context(os.fdopen(told, "rb"))
        saying = stack.enter_context(os.fdopen(tell, "wb"))
        rules = stack.enter_context(_readable(refused_calls()))
        own = [
            *_APART,
            "--chdir",
            "/",
            "--hostname",
            programs.hostname(launch),
        ]
        own += [*_view(launch, user, code), "--seccomp", str(rules)]
        words = "\0".join([*own, "--info-fd", str(saying.fileno())])
        arguments = stack.enter_context(
            _readable(words.encode(errors="surrogateescape"))
        )
        output = stack.enter_context(log.open("ab"))
        bwrap = [
            _tool("bwrap"),
            "--args",
            str(arguments),
            "--",
        ]
        child = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                _WHEN_TOLD,
                "sh",
                *bwrap,
                *_become(user, limits),
                *command,
            ],
            cwd="/",
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=[saying.fileno(), rules, arguments],
            start_new_session=True,  # Ctrl-C must reach the agent only.
        )
        try:
            saying.close()
            assert child.stdin is not None
            with child.stdin as go:
                limit(child.pid, launch, groups)
                go.write(b"\n")
            if not select.select(
                [said],
                [],
                [],
                _DEADLINE_S,
            )[0]:
                raise ValueError("bubblewrap hangs")
            return child, int(json.loads(said.read())["child-pid"])
        except BaseException as error:
            child.kill()
            child.wait()
            if not isinstance(error, (KeyError, ValueError)):
                raise
            why = (
                " | ".join(keeper.last_lines(log))
                or "bubblewrap gave no reason"
            )
            if tries > 1 and _VANISHED in why:
                os.truncate(log, 0)
                return begin(
                    command,
                    launch,
                    user,
                    groups,
                    rlimits,
                    code,
                    tries - 1,
                )
            raise LaunchError(
                f"confining worker {launch.spec.id}: {why}"
            ) from error


@functools.cache
def _tool(name: str) -> str:
    package = {"bwrap": "bubblewrap"}.get(name, "util-linux")
    if (found := shutil.which(name, path=ENVIRONMENT["PATH"])) is None:
        raise LaunchError(
            f"workers as processes need the program {name}",
            hint=f"apt install {package}",
        )
    return found


@contextmanager
def _readable(content: bytes) -> Iterator[int]:
    """A descriptor of an unnamed file with this content, positioned at its start."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        yield file.fileno()


def _system_files() -> list[str]:
    """bubblewrap's arguments for the server's files, read-only, without ``_MADE_ANEW``."""
    arguments = list[str]()
    for entry in sorted(os.scandir("/"), key=lambda each: each.name):
        if entry.is_symlink():
            arguments += ["--symlink", os.readlink(entry), entry.path]
        elif entry.is_dir() and entry.name not in _MADE_ANEW:
            arguments += ["--ro-bind", entry.path, entry.path]
    return [*arguments, *_KERNEL_FILES]


def _view(
    launch: WorkerLaunch,
    user: WorkerUser,
    code: Iterable[Path],
) -> list[str]:
    """bubblewrap's arguments for a worker's files: its own, and the server's read-only, without
    those of other users and of Patchlight."""
    folder = launch.directory
    spec = launch.spec
    patchlight = (_STATE, Path(os.path.realpath(folder.parent.parent)))
    hidden = [Path(each) for each in ("/run", "/tmp", "/var/tmp")]
    shown = [("--ro-bind", each) for each in code]
    if launch.gpu_socket is not None:
        shown.append(("--bind", launch.gpu_socket))
    if isinstance(spec.task, TorchTask) and spec.task.data is not None:
        shown.append(("--ro-bind", Path(spec.task.data)))
    own = [("--bind", folder)]
    if spec.checkpoint is not None:
        own.append(("--bind", Path(spec.checkpoint)))

    def is_hidden(path: Path) -> bool:
        return any(path.is_relative_to(each) for each in hidden)

    ways = (Path(os.path.realpath(path)) for _, path in (*shown, *own))
    for closed in (*patchlight, *map(user.closed, ways)):
        if closed is not None and closed.exists() and not is_hidden(closed):
            hidden.append(closed)
    mounts = {}
    for how, path in (*shown, *own):
        real = Path(os.path.realpath(path))
        place = path if is_hidden(path) else real
        if (how, path) in own or is_hidden(place):
            mounts[place] = [how, str(real), str(place)]
    arguments = _system_files()
    for path in hidden:
        mode = "1777" if path.name == "tmp" else "0755"
        arguments += [
            "--perms",
            mode,
            "--tmpfs",
            str(path),
        ]
    for place in sorted(mounts):
        for above in filter(is_hidden, reversed(place.parents)):
            arguments += [
                "--perms",
                "0755",
                "--dir",
                str(above),
            ]
        arguments += mounts[place]
    devices = list(_devices(launch))
    # A folder that bubblewrap makes by itself is closed to the worker's user.
    for within in sorted(
        {os.path.dirname(each) for each in devices} - {"/dev"}
    ):
        arguments += [
            "--perms",
            "0755",
            "--dir",
            within,
        ]
    for device in devices:
        arguments += ["--dev-bind-try", device, device]
    hosts = Path("/etc/hosts")
    if hosts.exists():
        arguments += [
            "--ro-bind",
            str(folder / "hosts"),
            os.path.realpath(hosts),
        ]
    return arguments


def _devices(launch: WorkerLaunch) -> Iterator[str]:
    if launch.gpu is not None:
        if launch.gpu.minor is None:
            raise LaunchError(
                f"worker {launch.spec.id}: the driver does not report the device node of GPU "
                f"{launch.gpu.uuid}",
                hint="run the agent with --worker-kind docker",
            )
        yield from (
            f"/dev/{each}" for each in (f"nvidia{launch.gpu.minor}", *_NVIDIA)
        )
    yield from map(str, launch.rdma_devices)


def _become(user: WorkerUser, limits: Sequence[str]) -> list[str]:
    ids = [f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups"]
    lower = [_tool("prlimit"), *limits] if limits else []
    return [
        *lower,
        _tool("setpriv"),
        *ids,
        *_NO_RIGHTS,
    ]


def limit(
    pid: int,
    launch: WorkerLaunch,
    groups: Sequence[Path],
) -> None:
    """Put a process and its children into its cgroups (by the files ``groups``) and on its CPUs.
    Harmless if it has ended."""
    try:
        for path in groups:
            path.write_text(str(pid))
        if launch.cpus:
            os.sched_setaffinity(pid, cpus_of(launch.cpus))
    except ProcessLookupError:
        return
    except OSError as exc:
        where = f" ({exc.filename})" if exc.filename else ""
        raise LaunchError(
            f"limiting worker {launch.spec.id}: {exc.strerror}{where}"
        ) from exc
