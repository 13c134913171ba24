"""Gives a worker its GPU, NIC, namespace and folder, and takes them back; records each step
first."""

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from patchlight.agents.errors import (
    AgentError,
    Conflict,
    GpuError,
    NicDark,
    NicError,
    log,
)
from patchlight.agents.gpus import GpuBackend, Pairings, read_patiently
from patchlight.agents.leases import Claims, Lease, LeaseBook
from patchlight.agents.nics import status
from patchlight.agents.nics.backend import NicBackend
from patchlight.agents.nics.state import (
    RENDEZVOUS,
    NicAccess,
    NicState,
    WorkerNetwork,
    name_inside,
)
from patchlight.agents.path_nodes import PathNodes
from patchlight.agents.workers import limits, programs
from patchlight.agents.workers.contract import (
    Runner,
    RunningWorker,
    WorkerLaunch,
)
from patchlight.testbed.errors import PatchlightError, in_words, reason
from patchlight.testbed.lab.model import Lab, Nic, Server
from patchlight.testbed.linux import files, namespaces
from patchlight.testbed.linux.processes import memory_for_workers
from patchlight.testbed.wire.agent_status import RdmaStatus
from patchlight.testbed.wire.worker_api import WorkerSpec

RELOCK_WITH_RDMA_S = 10.0
"""How long an RDMA port and its GID may take to return if the lab file sets no time."""

_LOOK_AGAIN_S = 0.02
_MOST_PEERS = 32


@dataclass(
    frozen=True,
    slots=True,
)
class AgentSite:
    """What the workers of one server share."""

    lab: Lab
    server: Server
    runner: Runner
    gpus: GpuBackend
    nics: NicBackend
    pairings: Pairings
    book: LeaseBook
    claims: Claims
    folders: Path
    paths: PathNodes
    boot: str

    def namespace_of(self, worker: str) -> str:
        """The name of a worker's network namespace, unique to this lab and server."""
        return f"pl.{self.lab.name}.{self.server.name}.w-{worker}"

    def things_of(self, spec: WorkerSpec, interface: str) -> dict[str, str]:
        """The names of a worker's NIC and GPU, by keys that all labs on this server share."""
        things = {f"nic {self.nics.key(interface)}": f"NIC {spec.nic}"}
        if spec.gpu is not None:
            physical = self.gpus.physical(spec.gpu)
            socket = self.gpus.socket_of(spec.gpu)
            if physical is not None:
                things[f"gpu {physical.uuid}"] = f"GPU {spec.gpu}"
            elif socket is not None:
                found = socket.stat()
                things[f"socket {found.st_dev} {found.st_ino}"] = (
                    f"GPU {spec.gpu}"
                )
        return things


class Tenancy:
    """What one worker has of the server. ``energy_j``: energy used by its GPU, if measured."""

    def __init__(
        self,
        site: AgentSite,
        spec: WorkerSpec,
        lease: Lease | None = None,
    ) -> None:
        self._site = site
        self._spec = spec
        self._lease = lease
        self.folder = site.folders / spec.id
        self.rdma: RdmaStatus | None = None
        self.energy_j: float | None = None
        self.is_forgotten = False

    @property
    def lease(self) -> Lease:
        """The worker's lease; ``Conflict`` before it exists."""
        if self._lease is None:
            raise Conflict(
                f"worker {self._spec.id} is not up yet",
                hint="wait until it is ready",
            )
        return self._lease

    @property
    def is_launched(self) -> bool:
        """Whether the worker has everything that it needs."""
        return self._lease is not None and self._lease.handle is not None

    @property
    def has_lease(self) -> bool:
        """Whether it was begun and is not forgotten."""
        return self._lease is not None

    @property
    def is_over(self) -> bool:
        """Whether GPU and NIC are back."""
        return self.is_forgotten or (
            self._lease is not None and self._lease.returned
        )

    @property
    def place(self) -> status.NicPlace | None:
        """Where its NIC is, once it has one."""
        lease = self._lease
        if lease is None or lease.handle is None:
            return None
        nic = self._nic
        state = lease.nic_state
        spec = self._spec
        inside = name_inside(
            state.interface, state.mode, nic.vlan if nic else None
        )
        space = (
            self._site.nics.home
            if state.stays
            else namespaces.namespace_path(lease.namespace)
        )
        own = next(member for member in spec.ring if member.rank == spec.rank)
        return status.NicPlace(
            space,
            state,
            inside,
            IPv4Address(str(own.address)),
        )

    @property
    def _nic(
        self,
    ) -> Nic | None:  # the NIC may have been removed from the lab file
        return next(
            (
                nic
                for nic in self._site.server.nics
                if nic.name == self._spec.nic
            ),
            None,
        )

    @property
    def nic_problem(self) -> status.NicProblem | None:
        """The present problem of its NIC, if any. Also updates ``rdma`` and the network file that
        the worker's program reads."""
        if (place := self.place) is None:
            return None
        problem = self._site.nics.problem(place)
        if problem is not None or place.state.rdma is None:
            return problem
        before = self.rdma
        self.rdma = self._site.nics.rdma(place)
        told = [
            each and each.model_copy(update={"counters": {}})
            for each in (before, self.rdma)
        ]
        if told[0] != told[1]:
            programs.publish(self.folder, place, told[1])
        return status.rdma_problem(self.rdma, place.address)

    async def until_lit(self) -> None:
        """Wait until its NIC is usable and announce it, or raise ``NicDark``. If the lab file sets
        no time, only RDMA devices are awaited: TCP retries by itself."""
        await self._until_usable()
        if (place := self.place) is not None:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._site.nics.announce_once, place)

    async def _until_usable(self) -> None:
        relock_s = self._nic.relock_s if self._nic else None
        if relock_s is None and self.lease.nic_state.rdma is None:
            return
        budget_s = RELOCK_WITH_RDMA_S if relock_s is None else relock_s
        end = time.monotonic() + budget_s
        while (
            problem := await asyncio.to_thread(lambda: self.nic_problem)
        ) is not None:
            if time.monotonic() > end or not problem.is_dark:
                raise NicDark(
                    f"worker {self._spec.id} cannot continue: after {budget_s:g} s {problem.words}",
                    hint="if relocking takes longer, increase 'relock' of the NIC in the lab file",
                )
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def announce(self, token: str, wait_s: float) -> list[str]:
        """Announce its NIC; the addresses of the other workers that are not heard in this time.

        Beyond ``_MOST_PEERS`` workers, each greets its neighbours in the ring only.
        """
        spec = self._spec
        place = self.place
        if place is None:
            raise Conflict(
                f"worker {spec.id} has no NIC yet",
                hint="wait until it is ready",
            )
        # A NIC with soft RoCE passes greetings on to the worker's veth.
        place = replace(
            place, namespace=namespaces.namespace_path(self.lease.namespace)
        )
        address_of = {
            each.mac.lower(): str(each.address) for each in spec.neighbours
        }
        if (size := len(spec.ring)) > _MOST_PEERS:
            ranks = {(spec.rank + step) % size for step in (-1, 1)}
            near = {
                str(member.address)
                for member in spec.ring
                if member.rank in ranks
            }
            address_of = {
                mac: address
                for mac, address in address_of.items()
                if address in near
            }
        mtu = self._nic.mtu if self._nic else None
        try:
            return await self._site.nics.announce(
                place,
                address_of,
                token,
                wait_s,
                mtu,
            )
        except OSError as exc:
            where = f"announcing {place.inside} of worker {spec.id}"
            raise NicError(f"{where}: {exc.strerror or reason(exc)}") from exc

    async def begin(self, nic: Nic) -> RunningWorker:
        """Save a lease, launch the worker and move its NIC in. After an error call ``end``."""
        try:
            return await self._begin(nic)
        except OSError as exc:
            what = f" {exc.filename}" if exc.filename else ""
            why = exc.strerror or reason(exc)
            raise AgentError(
                f"launching worker {self._spec.id}: {why}{what}"
            ) from exc

    async def _begin(self, nic: Nic) -> RunningWorker:
        spec = self._spec
        site = self._site
        name = site.namespace_of(spec.id)
        # A GPU that has fallen off the bus raises GpuError.
        reading = (
            await read_patiently(site.gpus, spec.gpu) if spec.gpu else None
        )

        def take() -> tuple[NicAccess, NicState]:
            access = site.nics.find(nic)
            if (
                access.rdma is None
                and getattr(spec.task, "transport", "tcp") == "rdma"
            ):
                raise NicError(
                    f"worker {spec.id} trains over RDMA, but {nic.name} has no RDMA device that it "
                    "can use",
                    hint="check with 'rdma link' on the server that its driver is loaded "
                    "(mlx5_ib, bnxt_re, irdma, rdma_rxe), and that the lab file does not say "
                    "rdma: none",
                )
            site.claims.take(
                spec.id, name, site.things_of(spec, access.interface)
            )
            return access, site.nics.read(access)

        access, before = await asyncio.to_thread(take)
        energy_j = (
            reading.telemetry.energy_j
            if reading and reading.telemetry
            else None
        )
        self._write(
            Lease(
                spec,
                name,
                before,
                site.runner.name,
                time.time(),
                gpu_energy_j=energy_j,
            )
        )
        gpu = site.gpus.physical(spec.gpu) if spec.gpu else None
        await asyncio.to_thread(files.remove_folder, self.folder)
        self.folder.mkdir(
            mode=0o700,
            parents=True,
        )
        running = await site.runner.launch(
            WorkerLaunch(
                spec=limits.permitted(spec, site.lab.workers),
                directory=self.folder,
                namespace=name,
                interface=name_inside(access.interface, access.mode, nic.vlan),
                rendezvous_interface=RENDEZVOUS if nic.rendezvous else None,
                rdma=access.rdma,
                dscp=nic.dscp,
                gpu_socket=site.gpus.socket_of(spec.gpu) if spec.gpu else None,
                gpu=gpu,
                cpus=site.pairings.cpus_near(spec.gpu, nic),
                hosts=site.lab.names_by_address,
                limits=limits.limits_of(
                    spec,
                    gpu,
                    limits.memory_share(
                        site.lab, site.server, memory_for_workers()
                    ),
                    site.lab.workers,
                ),
            )
        )

        def give() -> None:
            network = WorkerNetwork.of(site.lab, nic, spec)
            site.nics.give(before, name, network)

        try:
            await asyncio.to_thread(give)
            self.record(handle=running.handle)
            assert self.place is not None
            # Its circuit may have moved since a switch last saw a frame from it.
            await asyncio.to_thread(site.nics.announce_once, self.place)
            programs.publish(self.folder, self.place, None)
            # Publishes its RDMA device.
            await asyncio.to_thread(lambda: self.nic_problem)
            await site.paths.serve(spec, self.folder)
        except BaseException:
            await running.dispose()
            raise
        return running

    async def count_energy(self) -> None:
        """Read the energy that the GPU used for this worker, if it is measured. A counter kept by
        the agent restarts with the agent."""
        lease = self._lease
        if (
            lease is None
            or lease.gpu_energy_j is None
            or self._spec.gpu is None
        ):
            return
        with contextlib.suppress(GpuError):
            told = (await self._site.gpus.read(self._spec.gpu)).telemetry
            if told is None or told.energy_j is None:
                return
            if (
                told.energy_j >= lease.gpu_energy_j
                and (told.energy_since or 0) <= lease.created_at
            ):
                self.energy_j = told.energy_j - lease.gpu_energy_j

    async def end(self, running: RunningWorker | None) -> str:
        """End the worker and take everything back; returns what could not be read or saved. What
        cannot be taken back is an error and stays leased."""
        try:
            if running is not None:
                await running.dispose()
        finally:  # A container that does not end must not keep the NIC.
            lost = await asyncio.to_thread(self._take_back)
        return lost

    async def claim_again(self) -> None:
        """Claim for this agent what a worker of an earlier agent has."""
        spec = self._spec
        lease = self.lease
        try:
            things = self._site.things_of(spec, lease.nic_state.interface)
            await asyncio.to_thread(
                self._site.claims.take,
                spec.id,
                lease.namespace,
                things,
            )
        except (PatchlightError, OSError) as exc:
            log.error("worker %s: %s", spec.id, in_words(exc))

    def _take_back(self) -> str:
        lost = ""
        if (lease := self._lease) is not None:
            lost = self._site.nics.take_back(lease.nic_state, lease.namespace)
        try:
            self._site.claims.give_up(self._site.namespace_of(self._spec.id))
        except PatchlightError as exc:
            # Everything is back, but other labs may have to wait until this agent ends.
            log.error("worker %s: %s", self._spec.id, exc)
        return lost

    def record(self, **changes: Any) -> None:
        """Write changes of the lease to the disk."""
        self._write(replace(self.lease, **changes))

    def note(self, **changes: Any) -> None:
        """Like ``record``, but the agent keeps the changes in memory if the disk fails."""
        try:
            self.record(**changes)
        except AgentError as exc:
            log.error("%s", exc)
            self._lease = replace(self.lease, **changes)

    def _write(self, lease: Lease) -> None:
        self._site.book.write(lease)
        self._lease = lease

    async def forget(self) -> None:
        """Remove the lease and the folder."""
        await asyncio.to_thread(files.remove_folder, self.folder)
        self._site.book.end(self._spec.id)
        self._lease = None
        self.is_forgotten = True
