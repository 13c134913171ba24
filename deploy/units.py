"""How the agent and the controller of a lab are run on a server: as systemd reads it, or a shell.

The agent makes network namespaces that its workers and the next agent need. systemd's settings
that give a service a view of the file system of its own (``ProtectSystem``, ``PrivateTmp``, …)
would keep those to the one agent, so what it may not do is said by capabilities and system calls.
Not by ``RestrictSUIDSGID``: it forbids openat2, which bubblewrap needs from version 0.12 on.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

HOME = "/opt/patchlight"
_STATE = "/var/lib/patchlight"
# What an agent needs as root: namespaces and NICs, workers of any user, their limits, their locks
# on memory, and files of theirs. Not: modules, clock, reboot, raw hardware.
_AGENT_CAPABILITIES = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID IPC_LOCK KILL MKNOD NET_ADMIN "
    "NET_BIND_SERVICE NET_RAW SETGID SETPCAP SETUID SYS_ADMIN SYS_CHROOT SYS_NICE SYS_PTRACE "
    "SYS_RESOURCE"
)
_AGENT_LIMITS = f"""\
# Workers outlive their agent: only the agent itself is ended.
KillMode=process
Delegate=yes
LimitMEMLOCK=infinity
LimitNOFILE=65536
CapabilityBoundingSet={" ".join(f"CAP_{name}" for name in _AGENT_CAPABILITIES.split())}
SystemCallFilter=~@clock @module @reboot @swap @raw-io @obsolete @cpu-emulation
SystemCallArchitectures=native
LockPersonality=yes
NoNewPrivileges=yes
"""
# It needs to be nobody: it speaks to devices and agents, and keeps its state.
_CONTROLLER_LIMITS = f"""\
ProtectSystem=strict
ReadWritePaths={_STATE} /run
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_NET_BIND_SERVICE
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
NoNewPrivileges=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
"""
_LIMITS = {
    "agent": _AGENT_LIMITS,
    "controller": _CONTROLLER_LIMITS,
    "gpus": _CONTROLLER_LIMITS,
}


@dataclass(
    frozen=True,
    slots=True,
)
class Run:
    """A program of a lab on a server: its role (agent, controller, gpus) and its command."""

    lab: str
    role: str
    command: Sequence[str]

    @property
    def unit(self) -> str:
        """The systemd unit. A program that fails is started again, ever less often."""
        command = " ".join(_for_systemd(word) for word in self.command)
        return f"""\
[Unit]
Description=Patchlight {self.role} of lab {self.lab}
After=network-online.target docker.service
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
Environment=PYTHONUNBUFFERED=1
Restart=always
RestartSec=2
TimeoutStopSec=30
UMask=0077
StateDirectory=patchlight/{self.lab}
StateDirectoryMode=0700
{_LIMITS[self.role]}
[Install]
WantedBy=multi-user.target
"""

    @property
    def script(self) -> str:
        """The same without systemd: a shell that starts it again, after 1 to 30 s."""
        return f"""\
#!/bin/sh
# sh keep-{self.role}.sh FOLDER LOG keeps the {self.role} of lab {self.lab} running.
# SIGTERM ends both.
umask 077
run=$1/{self.role} log=$2
export PYTHONUNBUFFERED=1
pause=1 over=''
trap 'over=yes' TERM
until [ -n "$over" ]; do
    began=$(date +%s)
    printf . >>"$run.starts"
    # What an earlier run wrote is kept; of what came before that, nothing.
    if [ "$(stat -c %s "$log")" -gt 10000000 ]; then cp "$log" "$log.1"; : >"$log"; fi
    {shlex.join(self.command)} >>"$log" 2>&1 &
    child=$!
    echo "$child" >"$run.child"
    while kill -0 "$child" 2>/dev/null; do
        # A signal that comes while a shell becomes the program is lost: it is sent again.
        if [ -n "$over" ]; then kill -TERM "$child" 2>/dev/null; sleep 0.2; else wait "$child"; fi
    done
    [ -z "$over" ] || break
    [ $(($(date +%s) - began)) -lt 60 ] || pause=1
    sleep "$pause" &
    wait $!
    kill $! 2>/dev/null
    pause=$((pause * 2))
    [ "$pause" -le 30 ] || pause=30
done
"""


def agent_command(
    lab: str,
    server: str,
    listen: str,
    *,
    workers: str,
    gpus: str,
    image: str,
) -> list[str]:
    """The command of an agent that finds its files where a deployment puts them."""
    home = f"{HOME}/{lab}"
    options = {
        "--lab": f"{home}/configuration/lab.yaml",
        "--server": server,
        "--listen": listen,
        "--tls": f"{home}/configuration/agent-tls",
        "--state": f"{_STATE}/{lab}/agent",
        "--worker-kind": workers,
        "--gpu-source": gpus,
        "--image": image,
    }
    words = [word for option in options.items() for word in option]
    return [
        f"{home}/current/bin/patchlight",
        "agent",
        "run",
        *words,
    ]


def gpus_command(lab: str, server: str) -> tuple[list[str], str]:
    """The command that emulates a server's GPUs, and the folder of their sockets."""
    home = f"{HOME}/{lab}"
    folder = f"/run/patchlight-services/{lab}/gpus"
    command = [
        f"{home}/current/bin/python",
        "-m",
        "patchlight.emulation.lab.gpus",
    ]
    command += [
        "--lab",
        f"{home}/configuration/lab.yaml",
        "--server",
        server,
        "--dir",
        folder,
    ]
    return command, folder


def controller_command(lab: str, api: str) -> list[str]:
    """The command of a controller whose API is at ``api`` of that server."""
    home = f"{HOME}/{lab}"
    options = {
        "--lab": f"{home}/configuration/lab.yaml",
        "--tls": f"{home}/configuration/controller-tls",
        "--state": f"{_STATE}/{lab}/controller",
        "--api": api,
    }
    words = [word for option in options.items() for word in option]
    return [
        f"{home}/current/bin/patchlight",
        "controller",
        "run",
        *words,
    ]


def _for_systemd(word: str) -> str:
    """A word of a command as a unit has it: ``%`` and ``$`` mean nothing there."""
    quoted = (
        word.replace("\\", "\\\\")
        .replace('"', '\\"')
        .replace("%", "%%")
        .replace("$", "$$")
    )
    return f'"{quoted}"' if quoted != word or " " in word else word
