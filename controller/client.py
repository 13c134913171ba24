"""The controller's REST API from Python: what the command line and the experiments use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import httpx

from testbed.errors import BadInput, PatchlightError
from testbed.jobs import JobSpec

Answer = dict[str, Any]


class ControllerError(PatchlightError):
    """The controller refused, or did not answer."""


class ControllerClient:
    """A running controller, by the address of its API (``host:port``). A context manager.

    Methods return the API's JSON as it is; ``BadInput`` where the controller calls the
    request wrong, ``ControllerError`` where it could not do it or does not answer.
    """

    def __init__(self, address: str, deadline_s: float = 120.0) -> None:
        self.address = address
        # The server drops idle connections after 5 s: a request must not race that.
        limits = httpx.Limits(keepalive_expiry=2.0)
        self._http = httpx.Client(
            base_url=f"http://{address}/v1", timeout=deadline_s, limits=limits
        )

    def __enter__(self) -> ControllerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def _call(self, method: str, path: str, body: Any = None, **query: Any) -> Answer:
        try:
            response = self._http.request(method, path, json=body, params=query)
        except httpx.HTTPError as error:
            raise ControllerError(
                f"no answer from a controller at {self.address} ({error or type(error).__name__})",
                hint="start one with 'patchlight emulate up LAB' or 'patchlight controller run', "
                "or name another with --controller host:port",
            ) from error
        try:
            answer = response.json()
        except ValueError:
            answer = {"error": response.text or f"HTTP {response.status_code}"}
        if response.is_success:
            return dict(answer)
        if "error" in answer:
            kind = BadInput if response.status_code == 422 else ControllerError
            raise kind(str(answer["error"]), hint=answer.get("hint"))
        raise BadInput(f"the controller does not take that: {answer.get('detail', answer)}")

    def status(self) -> Answer:
        """The lab, the engine, and who is connected."""
        return self._call("GET", "/status")

    def links(self) -> list[Answer]:
        """Who lights up whom now."""
        return list(self._call("GET", "/links")["links"])

    def circuits(self) -> Answer:
        """The map of each OCS, as ``{"ocs1": {"map": ["1>7", …]}}``."""
        return self._call("GET", "/circuits")

    def reconfigure(
        self,
        maps: Mapping[str, Sequence[str]],
        *,
        only: bool = False,
        disconnect: Mapping[str, Sequence[int]] | None = None,
        why: str = "",
    ) -> Answer:
        """Ask for cross-connects to be made and ports to be freed; what became of it."""
        body = {
            "maps": {name: list(texts) for name, texts in maps.items()},
            "disconnect": {name: list(ports) for name, ports in (disconnect or {}).items()},
            "only": only,
            "why": why,
        }
        return self._call("POST", "/reconfigurations", body)

    def reconfigurations(self) -> list[Answer]:
        """Every change so far, oldest first."""
        return list(self._call("GET", "/reconfigurations")["reconfigurations"])

    def submit(self, jobs: Sequence[JobSpec], topology: str = "keep") -> list[Answer]:
        """Queue jobs that start together; their statuses."""
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
