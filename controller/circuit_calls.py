"""The part of the controller's client that is about circuits."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from patchlight.controller.job_calls import PAGE, pages
from patchlight.testbed.errors import BadInput

Answer = dict[str, Any]

_LONGEST_MAP_NAME = 100


def check_map_name(name: str) -> None:
    """``BadInput`` unless maps may be saved under this name."""
    if not 0 < len(name) <= _LONGEST_MAP_NAME or not name.isprintable() or "/" in name:
        words = f"expected 1 to {_LONGEST_MAP_NAME} printable characters without '/'"
    elif name in (".", ".."):
        words = "that is a folder"
    else:
        return
    raise BadInput(f"{name!r} cannot be the name of saved maps: {words}")


class CircuitCalls(ABC):
    """What can be asked and told of circuits; ``ControllerClient`` makes the calls."""

    @abstractmethod
    def _call(self, method: str, path: str, body: Any = None, **query: Any) -> Answer: ...

    # -- changing circuits ---------------------------------------------------------------------
    # Each of these takes ``why``, ``dry_run``, ``spare_jobs`` and ``planned_from`` (see
    # ``controller.api.models.ChangeRequest``) and answers with the record of the change, or with
    # what would change.

    def reconfigure(
        self,
        maps: Mapping[str, Sequence[str]],
        *,
        only: bool = False,
        disconnect: Mapping[str, Sequence[int | str]] | None = None,
        **options: Any,
    ) -> Answer:
        """Ask for cross-connects to be made and ports to be freed; what became of it.

        Of a wavelength switch they name a channel: ``1-2@193.100``, and ``3@193.100`` frees one.
        """
        body = {
            "maps": {name: list(texts) for name, texts in maps.items()},
            "disconnect": {name: list(ports) for name, ports in (disconnect or {}).items()},
            "only": only,
        }
        return self._call("POST", "/reconfigurations", body | options)

    def roll_back(self, number: int, **options: Any) -> Answer:
        """Undo one change, and nothing that other changes did."""
        return self._call("POST", f"/reconfigurations/{number}/rollback", options)

    def together(self, nodes: Sequence[str], *, force: bool = False, **options: Any) -> Answer:
        """Light servers or hosts onto one packet switch; ``force`` also moves jobs' circuits."""
        return self._call("POST", "/together", {"nodes": list(nodes), "force": force} | options)

    def light_paths(self, pairs: Sequence[tuple[str, str]], **options: Any) -> Answer:
        """Join pairs of ends by light over as many circuit switches as it takes."""
        return self._call(
            "POST", "/light-paths", {"pairs": [list(pair) for pair in pairs]} | options
        )

    def restore(self, name: str, **options: Any) -> Answer:
        """Bring about the maps saved under a name."""
        return self._call("POST", f"{_map_path(name)}/restore", options)

    def repair(self, names: Sequence[str], **options: Any) -> Answer:
        """Bring the devices back to their last committed maps."""
        return self._call("POST", "/drift/repair", {"ocs": list(names)} | options)

    def adopt(self, names: Sequence[str], why: str = "") -> Answer:
        """Take what the devices have as their committed maps."""
        return self._call("POST", "/drift/adopt", {"ocs": list(names), "why": why})

    def reconfigurations(self, last: int | None = None) -> list[Answer]:
        """Every change so far (or the ``last`` few), oldest first."""
        if last is not None and last <= PAGE:
            return list(self._call("GET", "/reconfigurations", last=last)["reconfigurations"])
        rows = pages(
            lambda row: self._call(
                "GET", "/reconfigurations", last=PAGE, after=row["id"] if row else 0
            )["reconfigurations"]
        )
        return list(rows)[-(last or 0) :]

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
        self, name: str, ports: Sequence[int | str], *, keep: bool = False, why: str = ""
    ) -> list[Answer]:
        """Lock ports for everybody, or with ``keep`` for everybody else."""
        body = {"ocs": name, "ports": list(ports), "keep": keep, "why": why}
        return list(self._call("POST", "/locks", body)["locks"])

    def unlock(self, name: str, ports: Sequence[int | str], why: str = "") -> list[Answer]:
        """Take locks away; those that there were."""
        body = {"ocs": name, "ports": list(ports), "why": why}
        return list(self._call("POST", "/locks/release", body)["locks"])

    def saved_maps(self) -> list[Answer]:
        """The maps that were saved."""
        return list(self._call("GET", "/maps")["maps"])

    def save_map(self, name: str, names: Sequence[str] = (), why: str = "") -> Answer:
        """Keep the present maps under a name."""
        return self._call("PUT", _map_path(name), {"ocs": list(names), "why": why})

    def forget_map(self, name: str) -> Answer:
        """Forget saved maps."""
        return self._call("DELETE", _map_path(name))

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


def _map_path(name: str) -> str:
    check_map_name(name)
    return f"/maps/{quote(name, safe='')}"
