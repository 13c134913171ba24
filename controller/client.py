"""The controller's REST API from Python: what the command line and the experiments use."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Self
from urllib.parse import quote

import httpx

from patchlight.testbed.errors import BadInput, OutcomeUnknown, PatchlightError
from patchlight.testbed.jobs import JobSpec

Answer = dict[str, Any]

USER_HEADER = "X-Patchlight-User"


class ControllerError(PatchlightError):
    """The controller refused, or did not answer."""


class ControllerClient:
    """A running controller, by the address of its API (``host:port``). A context manager.

    Methods return the API's JSON as it is. ``BadInput`` where the controller calls the
    request wrong, ``ControllerError`` where it could not do it or does not answer, and
    ``OutcomeUnknown`` where it was asked for a change and did not say what came of it.
    """

    def __init__(
        self,
        address: str,
        deadline_s: float = 120.0,
        *,
        user: str = "",
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """``user`` is the name that the history gets; ``transport`` replaces the network."""
        self.address = address
        # The server drops idle connections after 5 s: a request must not race that.
        limits = httpx.Limits(keepalive_expiry=2.0)
        self._http = httpx.Client(
            base_url=f"http://{address}/v1",
            timeout=deadline_s,
            limits=limits,
            # Headers are ASCII; names need not be.
            headers={USER_HEADER: user.encode("ascii", "replace").decode()},
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def _call(self, method: str, path: str, body: Any = None, **query: Any) -> Answer:
        try:
            response = self._http.request(method, path, json=body, params=query)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            never_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            if method != "GET" and not never_sent and not (body or {}).get("dry_run"):
                raise OutcomeUnknown(
                    f"the controller at {self.address} was asked, and did not say what came of "
                    f"it ({reason})",
                    hint="once it runs, it finishes or undoes what it had begun: "
                    "'patchlight ocs history' says which",
                ) from error
            raise ControllerError(
                f"no answer from a controller at {self.address} ({reason})",
                hint="start one with 'patchlight emulate up LAB' or 'patchlight controller run', "
                "name another with --controller host:port; 'patchlight ocs --direct' does without",
            ) from error
        try:
            answer = response.json()
        except ValueError:
            answer = {"error": response.text or f"HTTP {response.status_code}"}
        if response.is_success:
            return dict(answer)
        if "error" in answer:
            kind: type[PatchlightError] = ControllerError
            if answer.get("outcome") == "unknown":
                kind = OutcomeUnknown
            elif response.status_code == 422:
                kind = BadInput
            raise kind(str(answer["error"]), hint=answer.get("hint"))
        raise BadInput(f"the controller does not take that: {answer.get('detail', answer)}")

    def status(self) -> Answer:
        """The controller's ``lab``, ``version``, ``engine`` and ``policies``, and who is there.

        ``switches`` say whether they are ``connected``, ``circuit_switches`` and ``agents``
        whether they are ``reachable``; circuit switches that are not, ``since`` when and why.
        """
        return self._call("GET", "/status")

    def links(self) -> list[Answer]:
        """The links that the present cross-connects make: ``a``, ``b``, ``rate_bps``, ``via``."""
        return list(self._call("GET", "/links")["links"])

    def circuits(self) -> Answer:
        """The map of each OCS, as ``{"ocs1": {"map": ["1>7", …]}}``."""
        return self._call("GET", "/circuits")

    # -- changing circuits ---------------------------------------------------------------------
    # Each of these takes ``why``, ``dry_run``, ``spare_jobs`` and ``planned_from`` (see
    # ``controller.api.models.ChangeRequest``) and answers with the record of the change, or with
    # what would change.

    def reconfigure(
        self,
        maps: Mapping[str, Sequence[str]],
        *,
        only: bool = False,
        disconnect: Mapping[str, Sequence[int]] | None = None,
        **options: Any,
    ) -> Answer:
        """Ask for cross-connects to be made and ports to be freed; what became of it."""
        body = {
            "maps": {name: list(texts) for name, texts in maps.items()},
            "disconnect": {name: list(ports) for name, ports in (disconnect or {}).items()},
            "only": only,
        }
        return self._call("POST", "/reconfigurations", body | options)

    def roll_back(self, number: int, **options: Any) -> Answer:
        """Undo one change, and nothing that other changes did."""
        return self._call("POST", f"/reconfigurations/{number}/rollback", options)

    def restore(self, name: str, **options: Any) -> Answer:
        """Bring about the maps saved under a name."""
        return self._call("POST", f"/maps/{quote(name, safe='')}/restore", options)

    def repair(self, names: Sequence[str], **options: Any) -> Answer:
        """Bring the devices back to their last committed maps."""
        return self._call("POST", "/drift/repair", {"ocs": list(names)} | options)

    def adopt(self, names: Sequence[str], why: str = "") -> Answer:
        """Take what the devices have as their committed maps."""
        return self._call("POST", "/drift/adopt", {"ocs": list(names), "why": why})

    def reconfigurations(self, last: int | None = None) -> list[Answer]:
        """Every change so far (or the ``last`` few), oldest first."""
        query = {} if last is None else {"last": last}
        return list(self._call("GET", "/reconfigurations", **query)["reconfigurations"])

    def reconfiguration(self, number: int) -> Answer:
        """One change."""
        return self._call("GET", f"/reconfigurations/{number}")

    # -- looking at circuits -------------------------------------------------------------------

    def light(self, name: str) -> Answer:
        """The power (dBm) of each cross-connect of an OCS, and its ports that are not ready."""
        return self._call("GET", f"/circuits/{name}/light")

    def circuit_switches(self) -> list[Answer]:
        """Each circuit switch, whether it answers, and what it says that it is."""
        return list(self._call("GET", "/circuit-switches")["circuit_switches"])

    def accept_light(self, names: Sequence[str]) -> Answer:
        """Take the power as it is now for the baselines; how many circuits of each OCS."""
        return dict(self._call("POST", "/baselines", {"ocs": list(names)})["circuits"])

    def alarms(self, names: Sequence[str] = ()) -> list[Answer]:
        """What the devices reported by themselves, since the controller runs."""
        return list(self._call("GET", "/alarms", ocs=list(names))["alarms"])

    def drift(self) -> Answer:
        """How each device differs from its last committed map."""
        return dict(self._call("GET", "/drift")["drift"])

    # -- what operators leave ------------------------------------------------------------------

    def locks(self) -> list[Answer]:
        """Every locked port."""
        return list(self._call("GET", "/locks")["locks"])

    def lock(
        self, name: str, ports: Sequence[int], *, keep: bool = False, why: str = ""
    ) -> list[Answer]:
        """Lock ports for everybody, or with ``keep`` for everybody else."""
        body = {"ocs": name, "ports": list(ports), "keep": keep, "why": why}
        return list(self._call("POST", "/locks", body)["locks"])

    def unlock(self, name: str, ports: Sequence[int], why: str = "") -> list[Answer]:
        """Take locks away; those that there were."""
        body = {"ocs": name, "ports": list(ports), "why": why}
        return list(self._call("POST", "/locks/release", body)["locks"])

    def saved_maps(self) -> list[Answer]:
        """The maps that were saved."""
        return list(self._call("GET", "/maps")["maps"])

    def save_map(self, name: str, names: Sequence[str] = (), why: str = "") -> Answer:
        """Keep the present maps under a name."""
        return self._call("PUT", f"/maps/{quote(name, safe='')}", {"ocs": list(names), "why": why})

    def forget_map(self, name: str) -> Answer:
        """Forget saved maps."""
        return self._call("DELETE", f"/maps/{quote(name, safe='')}")

    def stop_button(self) -> Answer | None:
        """Who pressed the stop button, when and why; ``None`` if it is not pressed."""
        pressed = self._call("GET", "/stop")["pressed"]
        return None if pressed is None else dict(pressed)

    def press_stop(self, why: str = "") -> Answer:
        """Halt the change under way, and refuse new ones."""
        return self._call("POST", "/stop", {"why": why})

    def clear_stop(self, why: str = "") -> Answer:
        """Let changes begin again."""
        return self._call("POST", "/stop/clear", {"why": why})

    # -- jobs and samples ----------------------------------------------------------------------

    def submit(self, jobs: Sequence[JobSpec], topology: str | None = None) -> list[Answer]:
        """Queue jobs that start together; their statuses.

        ``topology`` is ``keep`` or ``regroup``; ``None`` leaves it to the lab's policy.
        """
        body = {"jobs": [asdict(job) for job in jobs], "topology": topology}
        return list(self._call("POST", "/jobs", body)["jobs"])

    def jobs(self) -> list[Answer]:
        """Every job's status."""
        return list(self._call("GET", "/jobs")["jobs"])

    def job(self, job_id: str) -> Answer:
        """One job's status."""
        return self._call("GET", f"/jobs/{job_id}")

    def stop(self, job_id: str) -> Answer:
        """End a job's gang."""
        return self._call("DELETE", f"/jobs/{job_id}")

    def iterations(self, job_id: str, after: int = 0) -> tuple[list[Answer], int]:
        """What the job's workers reported after number ``after``, and the next ``after``."""
        answer = self._call("GET", f"/jobs/{job_id}/iterations", after=after)
        return list(answer["iterations"]), int(answer["next"])

    def regroup(self, job_ids: Sequence[str]) -> Answer:
        """Bring running jobs under one packet switch each; the record of the change."""
        return self._call("POST", "/regroup", {"jobs": list(job_ids)})

    def ports(self, since: float = 0.0) -> list[Answer]:
        """Samples of each host's rates after Unix time ``since``, in bits per second."""
        return list(self._call("GET", "/ports", since=since)["ports"])

    def gpus(self, since: float = 0.0) -> list[Answer]:
        """Samples of each GPU's utilisation after Unix time ``since``."""
        return list(self._call("GET", "/gpus", since=since)["gpus"])

    def events(self, after: int = 0) -> list[Answer]:
        """What happened, after event number ``after``."""
        return list(self._call("GET", "/events", after=after)["events"])

    def last_event(self) -> int:
        """The number of the latest event."""
        return int(self._call("GET", "/events", after=1 << 62)["last"])
