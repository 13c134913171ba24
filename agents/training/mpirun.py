"""Runs an unchanged MPI program on all workers: ``python3 -m patchlight.agents.training.mpirun
PROGRAM ARGUMENTS…``, the same command on each.

Rank 0 runs Open MPI's ``mpirun``. In place of ssh, mpirun calls this module again for each other
worker, whose copy waits for the command and runs it. Over RDMA messages go by UCX.
It needs only the standard library.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time

_DEADLINE_S = 300.0


def main(arguments: list[str]) -> int:
    """Run the program, or what ``mpirun`` wants to run on another worker; returns the exit code."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    peers = os.environ["PATCHLIGHT_PEERS"].split(",")
    rank = int(os.environ["RANK"])
    port = int(os.environ["MASTER_PORT"])
    if arguments[0] == "--on":
        return _run_on(arguments[1], port, " ".join(arguments[2:]))
    if rank:
        return _serve(peers[rank], port, of=peers[0])
    with tempfile.NamedTemporaryFile("w") as hosts:
        hosts.writelines(f"{peer} slots=1\n" for peer in peers)
        hosts.flush()
        return subprocess.run(_mpirun(hosts.name, arguments)).returncode


def _mpirun(hosts: str, program: list[str]) -> list[str]:
    agent = f"{sys.executable} -m patchlight.agents.training.mpirun --on"
    # Open MPI 5 starts nothing on addresses after --host, and one worker per short host name.
    mca = {
        "plm_rsh_agent": agent,
        "plm_rsh_no_tree_spawn": "1",
        "prte_keep_fqdn_hostnames": "1",
    }
    if "UCX_NET_DEVICES" in os.environ:
        # Open MPI itself knows no other devices than Mellanox's.
        mca |= {
            "pml": "ucx",
            "opal_common_ucx_tls": "any",
            "opal_common_ucx_devices": "any",
        }
    else:
        mca |= {
            "btl": "self,tcp",
            "btl_tcp_if_include": os.environ["GLOO_SOCKET_IFNAME"],
        }
    options = [word for setting in mca.items() for word in ("--mca", *setting)]
    return [
        "mpirun",
        "--leave-session-attached",
        "--hostfile",
        hosts,
        *options,
        *program,
    ]


def _serve(
    address: str,
    port: int,
    of: str,
) -> int:
    """Run one command of rank 0's, and tell it the exit code. No other worker may send one."""
    with socket.create_server((address, port)) as server:
        server.settimeout(_DEADLINE_S)
        while True:
            connection, (peer, _) = server.accept()
            if peer == of:
                break
            connection.close()
    with connection, connection.makefile("r") as lines:
        code = subprocess.run(["/bin/sh", "-c", lines.read()]).returncode
        connection.sendall(f"{code}\n".encode())
    return code


def _run_on(
    address: str,
    port: int,
    command: str,
) -> int:
    end = time.monotonic() + _DEADLINE_S
    while True:
        try:
            connection = socket.create_connection(
                (address, port), timeout=_DEADLINE_S
            )
            break
        except OSError as exc:
            if time.monotonic() > end:
                print(
                    f"no answer from {address}:{port}: {str(exc) or type(exc).__name__}",
                    file=sys.stderr,
                )
                return 1
            time.sleep(0.1)
    connection.settimeout(None)
    with connection, connection.makefile("r") as lines:
        connection.sendall(command.encode())
        connection.shutdown(socket.SHUT_WR)
        return int(lines.readline() or 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
