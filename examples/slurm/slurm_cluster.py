"""A real Slurm on an emulated lab: each server is a node, and slurmctld runs on this machine.

It has its own network, port, munge key and socket, so that a Slurm of this machine is untouched.
Its processes are recorded as the lab's: ``emulate down`` ends them.
"""

import os
import re
import secrets
import shutil
import subprocess
from functools import partial
from pathlib import Path

from patchlight import LabBuilder
from patchlight.emulation.fabric.lab_state import MARK
from patchlight.emulation.fabric.plan import namespace_name
from patchlight.emulation.fabric.processes import LabService, Supervisor
from patchlight.emulation.lab.emulated_lab import EmulatedLab
from patchlight.emulation.servers.rehearsal import ManagementNetwork, Rehearsal, make_network
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.linux import namespaces, quoted_deploy_file
from patchlight.testbed.linux.processes import own_program
from patchlight.testbed.linux.sockets import free_ports

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
_CONFIGURATION = """\
ClusterName=patchlight
SlurmctldHost=head({address})
SlurmctldPort={port}
SlurmUser=root
AuthInfo=socket={folder}/munge.socket,cred_expire={requeue_s}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
TopologyPlugin=topology/tree
ReturnToService=2
SlurmdTimeout=30
SchedulerParameters=sched_min_interval=1,bf_interval=5
{hooks}{nodes}PartitionName=all Nodes=ALL Default=YES OverSubscribe=EXCLUSIVE
"""


def demo_lab(name: str) -> Lab:
    """Six servers behind an OCS, three on each of two ToRs, whose link has a twelfth of their rate.
    Each ToR has ports for all."""
    build = LabBuilder(name, network="10.1.0.0/24")
    build.ocs("ocs1")
    numbers = range(1, 7)
    for tor in ("tor1", "tor2"):
        build.switch(tor)
        for number in numbers:
            build.fibre(f"{tor}.{number}", "ocs1", rate="40Gbps")
    for number in numbers:
        build.server(f"server{number}", gpus=["A100"], rate="40Gbps")
        build.fibre(f"server{number}", "ocs1")
        build.circuit(f"server{number}.nic0", f"tor{1 if number < 4 else 2}.{number}")
    build.fibre("tor1", "tor2", rate="10Gbps")
    return build.lab()


class SlurmCluster:
    """Slurm on a lab that is up; its jobs claim their circuits, and ``topology.conf`` follows them.
    A job that is queued again waits for ``requeue_s``."""

    def __init__(self, lab: EmulatedLab, *, requeue_s: int = 120) -> None:
        self.lab = lab
        self.folder = lab.run_dir / "slurm"
        self._requeue_s = requeue_s
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self) -> None:
        """Start it and wait until all nodes are idle; ``BadInput`` where Slurm is missing. What is
        left after an error ends with the lab."""
        missing = [name for name in _PROGRAMS if not shutil.which(name)]
        if missing:
            raise BadInput(
                f"starting Slurm: {', '.join(missing)} not found",
                hint="install it: deploy/bootstrap.sh --slurm",
            )
        self._configure(self._make_network())
        supervisor = Supervisor(self.lab.state, lambda _: None)
        munge, controller, *others = self.services
        for services in ([munge], [controller], others):
            supervisor.start(services)

    def run(self, *command: str) -> str:
        """The output of a command of Slurm; ``PatchlightError`` if it fails."""
        done = subprocess.run(
            command,
            env=os.environ | self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode:
            raise PatchlightError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout}")
        return done.stdout

    @property
    def services(self) -> list[LabService]:
        """munge, slurmctld, a slurmd for each server; and what follows the topology."""
        folder = self.folder
        service = partial(LabService, environment=self.environment)
        socket = folder / "munge.socket"
        munge = service(
            "slurm-munge",
            [
                "munged",
                "--foreground",
                "--force",
                f"--key-file={folder}/munge.key",
                f"--socket={socket}",
                f"--pid-file={folder}/munge.pid",
                f"--log-file={folder}/munge.log",
                f"--seed-file={folder}/munge.seed",
            ],
            socket.exists,
        )
        named = "hostname head && exec slurmctld -D"
        controller = service(
            "slurmctld",
            ["unshare", "--uts", "sh", "-c", named],
            partial(self._says, "scontrol ping", "UP"),
        )
        nodes = [
            service(
                f"slurmd-{server.name}",
                ["slurmd", "-D", "-N", server.name],
                partial(self._says, f"sinfo --noheader --format=%T --nodes={server.name}", "idle"),
                namespaces.namespace_path(namespace_name(self.lab.lab.name, server.name)),
            )
            for server in self.lab.lab.servers
        ]
        following = (
            f"{own_program()} lab show {self.lab.lab.name} --format slurm-conf "
            f"--output {folder}/topology.conf --follow | "
            "while read -r line; do scontrol reconfigure; done"
        )
        topology = service("slurm-topology", ["sh", "-c", following], lambda: True)
        return [munge, controller, *nodes, topology]

    def switches(self, text: str) -> dict[str, set[str]]:
        """The nodes of each switch, as ``topology.conf`` or ``scontrol show topology`` says."""
        rows = re.findall(r"^SwitchName=(\S+)(?: Level=0.*)? Nodes=(\S+)$", text, re.MULTILINE)
        return {
            name: set(self.run("scontrol", "show", "hostnames", nodes).split())
            for name, nodes in rows
        }

    def states(self) -> dict[str, str]:
        """The state of each job by its id, ``HELD`` if it is; ended ones stay for 5 minutes."""
        lines = self.run("squeue", "--noheader", "--states=all", "--format=%i %T %r").splitlines()
        rows = (line.split(maxsplit=2) for line in lines)
        return {job: "HELD" if "Held" in reason else state for job, state, reason in rows}

    def _says(self, command: str, word: str) -> bool:
        try:
            return word in self.run(*command.split())
        except (PatchlightError, subprocess.TimeoutExpired):
            return False

    def _make_network(self) -> ManagementNetwork:
        state = self.lab.state
        lab = self.lab.lab
        names = [server.name for server in lab.servers]
        network = make_network(lab, names, state.namespaces.__setitem__)
        state.save()
        Rehearsal(lab, "ssh", Path(), Path(), network).join()
        return network

    def _configure(self, network: ManagementNetwork) -> None:
        self.folder.mkdir(mode=0o755)
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        nodes = [
            f"NodeName={name} NodeAddr={address} CPUs=1\n"
            for name, address in network.addresses.items()
        ]
        (self.folder / "topology.conf").write_text(self.lab.controller.topology_file("slurm-conf"))
        (self.folder / "slurm.conf").write_text(
            _CONFIGURATION.format(
                address=network.machine.ip,
                port=free_ports(1)[0],
                folder=self.folder,
                requeue_s=self._requeue_s,
                hooks=self._write_hooks(),
                nodes="".join(nodes),
            )
        )

    def _write_hooks(self) -> str:
        hook = self.folder / "circuits.sh"
        hook.write_text(
            "#!/bin/sh\n"
            f"export PATCHLIGHT={own_program()}\n"
            f"export PATCHLIGHT_LAB={self.lab.lab.name}\n"
            f"export SLURM_CONF={self.folder}/slurm.conf\n"
            f"export {MARK}={self.lab.run_dir}\n"
            f"exec sh {quoted_deploy_file('slurm/circuits.sh')}\n"
        )
        hook.chmod(0o755)
        return f"PrologSlurmctld={hook}\nEpilogSlurmctld={hook}\n"
