"""Puts a release of Patchlight on servers, and has it run there.

Each step finds out first whether there is anything to do: so it can be interrupted anywhere and
run again, and a second push of the same changes nothing.
"""

import getpass
import http.client
import json
import shlex
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import paramiko

from patchlight.controller.access.authority import Authority
from patchlight.deploy.bundle import BundleFile, Part, Role, Supply
from patchlight.deploy.check_machine import Workers
from patchlight.deploy.image_file import image_ids
from patchlight.deploy.remote import ConnectionCut, Remote
from patchlight.deploy.ssh import openssh_words, ssh_place
from patchlight.deploy.units import (
    HOME,
    Run,
    agent_command,
    controller_command,
    gpus_command,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.host_keys import known_name
from patchlight.testbed.jobs import STOP_GRACE_S
from patchlight.testbed.lab.model import Lab, Server
from patchlight.testbed.lab.rules import SshAccess
from patchlight.testbed.labfile.writer import write_lab
from patchlight.testbed.linux import credentials as tls_files
from patchlight.testbed.linux.processes import own_program
from patchlight.testbed.linux.sockets import (
    UNIX,
    is_beyond_this_machine,
    split_address,
)
from patchlight.testbed.wire.lab_api import system_socket

# An emulated processor on a busy machine takes minutes to import an agent.
_PATIENCE_S = 300.0
_LAST_LINES = 12
# A program that was started again so often does not get anywhere.
_MOST_RESTARTS = 2
# A busy machine may answer late; where no agent listens yet, the refusal comes at once.
_ANSWER_PATIENCE_S = 30.0
# Of a server's time that starts a program, questions to systemd take at most a tenth: one takes an
# emulated processor half a second.
_PAUSES = 9
_LEAST_PAUSE_S = 0.2
# How long taking everything back may last once all workers have ended.
_DRAIN_PATIENCE_S = 60.0


class AgentDoesNotAnswer(PatchlightError):
    """No agent of that server answers where the lab file says that it does."""


class LabAgents:
    """The agents of ``lab``, called from here, or from their server where SSH has a jump host."""

    def __init__(self, lab: Lab, credentials: tls_files.Credentials) -> None:
        self._lab = lab.name
        self._tls = credentials.context(server=False)

    def status(self, server: Server, remote: Remote) -> dict[str, Any]:
        """An agent's status; ``AgentDoesNotAnswer``."""
        return self._call(
            server,
            remote,
            "GET",
            "/v1/status",
            _ANSWER_PATIENCE_S,
        )

    def drain(
        self,
        server: Server,
        remote: Remote,
        status: Mapping[str, Any],
    ) -> None:
        """Have an agent of this status end its workers, which may take as long as the longest
        ``stop_grace`` of their jobs, and take everything back; ``AgentDoesNotAnswer``."""
        graces_s = (
            worker.get("stop_grace_s", STOP_GRACE_S)
            for worker in status["workers"]
        )
        patience_s = max(graces_s, default=0.0) + _DRAIN_PATIENCE_S
        self._call(
            server,
            remote,
            "POST",
            "/v1/drain",
            patience_s,
        )

    def _call(
        self,
        server: Server,
        remote: Remote,
        method: str,
        path: str,
        patience_s: float,
    ) -> dict[str, Any]:
        host, port = split_address(listening_at(server))
        name = tls_files.agent_name(server.name, self._lab)
        try:
            with (
                _connected(
                    server,
                    remote,
                    host,
                    port,
                    patience_s,
                ) as plain,
                self._tls.wrap_socket(plain, server_hostname=name) as tls,
            ):
                connection = http.client.HTTPConnection(host, port)
                connection.sock = tls
                connection.request(
                    method, path, headers={"Connection": "close"}
                )
                response = connection.getresponse()
                answer: dict[str, Any] = json.loads(response.read())
        except (
            OSError,
            ValueError,
            http.client.HTTPException,
            ConnectionCut,
        ) as error:
            why = error.reason if isinstance(error, ssl.SSLError) else error
            raise AgentDoesNotAnswer(
                f"the agent of {server.name} at {server.management} does not answer: "
                f"{why or type(error).__name__}",
                hint=f"See its log: patchlight deploy logs {self._lab} --server {server.name}",
            ) from error
        if response.status != http.client.OK:
            raise AgentDoesNotAnswer(
                f"the agent of {server.name}: {answer.get('error')}",
                hint=answer.get("hint"),
            )
        return answer


def _connected(
    server: Server,
    remote: Remote,
    host: str,
    port: int,
    patience_s: float,
) -> socket.socket:
    if server.ssh.jump_host is None:
        return socket.create_connection((host, port), timeout=patience_s)
    way = remote.way_to(host, port)
    way.settimeout(patience_s)
    return way


def listening_at(server: Server) -> str:
    """Where a server's agent is to listen, ``host:port``; ``PatchlightError`` if it is not said."""
    if server.management is None or server.management.startswith("unix:"):
        raise PatchlightError(
            f"the agent of {server.name} has no address in the lab file",
            hint="Write 'management: HOST:8471' at the server.",
        )
    return server.management


class DidNotStart(PatchlightError):
    """The deployed release does not run."""


@dataclass(
    frozen=True,
    slots=True,
)
class PushOptions:
    """The options of a push.

    ``image_file`` is ``image`` as ``docker save`` writes it; ``controller`` the server that the
    lab's controller is to run on (``None``: it stays where it is); concurrent
    deployers see ``who``.
    """

    who: str
    workers: Workers = "auto"
    image: str = "patchlight-worker:latest"
    image_file: BundleFile | None = None
    controller: str | None = None


@dataclass(
    frozen=True,
    slots=True,
)
class Pushed:
    """The result of a push on a server: bytes sent, whether it changed, its agent's answer."""

    release: str
    changed: bool
    copied_bytes: int
    version: str


@dataclass(
    frozen=True,
    slots=True,
)
class Plan:
    """The plan of a push on a server: the release, the one that runs now, bytes to send."""

    release: str
    runs: str | None
    copy_bytes: int


def plan_push(
    supply: Supply,
    settings: PushOptions,
    server: Server,
    remote: Remote,
) -> Plan:
    """The plan of a push to one server; nothing changes there."""
    found = remote.ask("look", image=settings.image)
    _, part, files, images = _needed(
        supply,
        settings,
        server,
        remote,
        found,
    )
    missing = _missing([*files, *images], found)
    runs = found["release"] and found["release"]["id"]
    return Plan(
        part.release, runs, sum(file.size - sent for file, sent in missing)
    )


class Push:
    """A push to servers of one lab; ``server`` may be called from several threads."""

    def __init__(
        self,
        lab: Lab,
        supply: Supply,
        authority: Authority,
        settings: PushOptions,
    ) -> None:
        self._lab = lab
        self._supply = supply
        self._settings = settings
        self._credentials = authority.folder.parent
        self._authority = authority
        self._own = authority.for_controller(self._credentials / "controller")
        self.agents = LabAgents(lab, self._own)
        self._controller: tuple[Server, paramiko.PKey] | None = None

    def server(self, server: Server, remote: Remote) -> Pushed:
        """Deploy to one server, and wait until its agent answers."""
        listen = listening_at(server)
        remote.ask("lock", who=self._settings.who)
        found = remote.ask("look", image=self._settings.image)
        roles, part, files, images = _needed(
            self._supply,
            self._settings,
            server,
            remote,
            found,
        )
        copied = _copy(files, found, remote)
        for image in images:
            copied += _copy([image], found, remote)
            remote.ask(
                "load_image",
                sha256=image.sha256,
                image=self._settings.image,
            )
        release = part.release
        who = self._settings.who
        mended = remote.ask(
            "install",
            release=release,
            packages=_hashes(part.own),
            layer=part.layer,
            required=_hashes(part.required),
            installer=part.installer.sha256,
            note={
                "version": version("patchlight"),
                "by": who,
                "at": time.time(),
            },
        )
        changed = mended and release == (found["release"] or {}).get("id")
        changed |= remote.ask(
            "configure", files=self._configuration(server, roles)
        )
        runs = dict[str, Run]()
        gpus = "nvml"
        if found["gpu_sockets"]:
            gpus = "socket:/dev/patchlight-gpus"
        elif server.emulated_gpus:
            command, folder = gpus_command(self._lab.name, server.name)
            runs["gpus"] = Run(self._lab.name, "gpus", command)
            gpus = f"socket:{folder}"
        command = agent_command(
            self._lab.name,
            server.name,
            listen,
            workers=self._settings.workers,
            gpus=gpus,
            image=self._settings.image,
        )
        runs["agent"] = Run(self._lab.name, "agent", command)
        if "controller" in roles:
            command = controller_command(self._lab.name, self._api)
            runs["controller"] = Run(self._lab.name, "controller", command)
        services = {role: (run.unit, run.script) for role, run in runs.items()}
        changed |= remote.ask(
            "serve",
            release=release,
            services=services,
            again=changed,
        )
        answered = wait_until_it_answers(self.agents, server, remote)
        if "controller" in roles:
            _wait_for_controller(remote, self._api)
            self._controller = server, remote.host_key
        return Pushed(
            release,
            changed,
            copied,
            answered["version"],
        )

    def ways_to_controller(self, lab_file: str) -> list[str]:
        """Commands that reach the controller if this push has touched it, each with its place."""
        if self._controller is None:
            return []
        server, key = self._controller
        lab = self._lab
        known_hosts = self._credentials / "known_hosts"
        where = known_name(*ssh_place(server))
        known_hosts.write_text(
            f"{where} {key.get_name()} {key.get_base64()}\n"
        )
        on_server = f"sudo {HOME}/{lab.name}/current/bin/patchlight"
        over_ssh = (
            f"{shlex.join(openssh_words(server, known_hosts))} {on_server}"
        )
        ways = [
            f"ask the controller on {server.name}: {on_server} status --lab {lab.name}",
            f"ask it from here: {over_ssh} status --lab {lab.name}",
        ]
        if lab.controller_api and is_beyond_this_machine(lab.controller_api):
            here = own_program()
            file = shlex.quote(lab_file)
            token = f"{over_ssh} token create --lab {lab.name} --role admin {getpass.getuser()}"
            ca = self._own.folder / tls_files.CA_FILE
            login = f"{here} login --ca {ca} --token-file - --lab {file}"
            ways.append(
                f"log in from here: {token.replace(' -t', '', 1)} | {login}"
            )
            ways.append(
                f"then ask it from here without SSH: {here} status --lab {file}"
            )
        return ways

    def _configuration(
        self, server: Server, roles: list[Role]
    ) -> dict[str, tuple[str, int]]:
        """The files of a server's configuration, with their modes."""
        folder = self._credentials / "agents" / server.name
        self._authority.for_agent(server.name, folder)
        files = {
            "lab.yaml": (self._lab_file, 0o644),
            **_credentials_in(folder, "agent-tls"),
        }
        if "controller" in roles:
            files |= _credentials_in(self._own.folder, "controller-tls")
        return files

    @property
    def _api(self) -> str:
        """Where a controller on a server answers whoever works there."""
        return (
            self._lab.controller_api
            or f"{UNIX}{system_socket(self._lab.name)}"
        )

    @cached_property
    def _lab_file(self) -> str:
        """The lab file without deploy-only keys."""
        servers = tuple(
            replace(server, ssh=SshAccess()) for server in self._lab.servers
        )
        return write_lab(self._lab.with_changes(servers=servers))


def controller_credentials(authority: Authority) -> tls_files.Credentials:
    """What shows the agents of a lab that its controller asks, or who deploys it."""
    return authority.for_controller(authority.folder.parent / "controller")


def wait_until_it_answers(
    agents: LabAgents,
    server: Server,
    remote: Remote,
) -> dict[str, Any]:
    """The status of an agent that was just started; ``DidNotStart`` with the last it wrote."""
    ends = time.monotonic() + _PATIENCE_S
    due = 0.0
    while True:
        try:
            return agents.status(server, remote)
        except AgentDoesNotAnswer as error:
            if (began := time.monotonic()) > due:
                state = remote.ask("state", role="agent")
                if state["restarts"] >= _MOST_RESTARTS or began > ends:
                    raise _failure(
                        remote,
                        "agent",
                        state["restarts"] > 0,
                        error.hint,
                    ) from error
                due = _after(began)
            time.sleep(_LEAST_PAUSE_S)


def _wait_for_controller(remote: Remote, api: str) -> None:
    ends = time.monotonic() + _PATIENCE_S
    while not remote.ask("answers", address=api):
        began = time.monotonic()
        again = remote.ask("state", role="controller")["restarts"]
        if again >= _MOST_RESTARTS or began > ends:
            raise _failure(
                remote,
                "controller",
                again > 0,
                None,
            )
        time.sleep(max(_LEAST_PAUSE_S, _after(began) - time.monotonic()))


def _after(began: float) -> float:
    now = time.monotonic()
    return now + _PAUSES * (now - began)


def _failure(
    remote: Remote,
    role: Role,
    again: bool,
    hint: str | None,
) -> DidNotStart:
    wrote = "".join(remote.logs(role, _LAST_LINES, follow=False)).splitlines()
    what = "restarts repeatedly" if again else "does not answer"
    return DidNotStart(
        f"the {role} of {remote.server} {what}; its last output:\n    "
        + "\n    ".join(wrote),
        hint=hint,
    )


def _needed(
    supply: Supply,
    settings: PushOptions,
    server: Server,
    remote: Remote,
    found: dict[str, Any],
) -> tuple[list[Role], Part, list[BundleFile], list[BundleFile]]:
    """The roles of a server, the release for them, its files without those of a layer that is
    there, and image files that its engine lacks."""
    roles: list[Role] = ["agent"]
    chosen = settings.controller
    if server.name == chosen or (
        chosen is None and "controller" in found["services"]
    ):
        roles.append("controller")
    # A controller's part has all that an agent needs.
    part = supply.part(remote.target, roles[-1])
    _check_fits(part, remote)
    file = settings.image_file
    lacks = file is not None and not {
        file.sha256,
        *image_ids(file.path),
    } & set(found["image"])
    is_there = remote.ask("has_layer", layer=part.layer)
    files = part.own if is_there else part.files
    return roles, part, [*files.values()], [file] if file and lacks else []


def _hashes(files: Mapping[str, BundleFile]) -> dict[str, str]:
    return {name: file.sha256 for name, file in files.items()}


def _check_fits(part: Part, remote: Remote) -> None:
    if part.glibc > remote.glibc:
        needs, has = (
            ".".join(map(str, each)) for each in (part.glibc, remote.glibc)
        )
        raise PatchlightError(
            f"{remote.server} has the C library {has}: the packages installed here need {needs}",
            hint=f"Deploy from a machine with a system no newer than that of {remote.server}.",
        )


def _copy(
    files: Iterable[BundleFile],
    found: dict[str, Any],
    remote: Remote,
) -> int:
    """Send what is not there yet, from where an earlier push was cut; how many bytes that was."""
    copied = 0

    def count(size: int) -> None:
        nonlocal copied
        copied += size

    for file, sent in _missing(files, found):
        remote.send(file, sent, count)
    return copied


def _missing(
    files: Iterable[BundleFile], found: dict[str, Any]
) -> list[tuple[BundleFile, int]]:
    """The files that a server lacks, each with the bytes of it that are there already."""
    here = set(found["files"])
    partial = found["partial"]
    return [
        (f, min(f.size, partial.get(f.sha256, 0)))
        for f in files
        if f.sha256 not in here
    ]


def _credentials_in(folder: Path, name: str) -> dict[str, tuple[str, int]]:
    modes = {
        tls_files.CA_FILE: 0o644,
        tls_files.CERTIFICATE_FILE: 0o644,
        tls_files.KEY_FILE: 0o600,
    }
    return {
        f"{name}/{file}": ((folder / file).read_text(), mode)
        for file, mode in modes.items()
    }
