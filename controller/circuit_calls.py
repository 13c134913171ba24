"""The part of the controller's client that is about circuits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from patchlight.controller.calls import PAGE, Answer, Call, Calls, call
from patchlight.testbed.errors import BadInput

if TYPE_CHECKING:
    from patchlight.controller.answer_types import CircuitSwitchShape, SavedMaps
    from patchlight.controller.shapes.changes import Change

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


class CircuitCalls(Calls):
    """What can be asked and told of circuits; ``ControllerClient`` makes the calls."""

    # -- changing circuits ---------------------------------------------------------------------
    # Each of these takes ``why``, ``dry_run``, ``spare_jobs`` and ``planned_from`` (see
    # ``controller.api.models.ChangeRequest``) and answers with the record of the change, or with
    # what would change. With ``detach`` they do not wait for the end of a change.

    def _change(
        self, path: str, body: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Call[Answer]:
        said = {**body, **options}
        prefer = "respond-async" if said.pop("detach", False) else ""
        return (yield from self._call("POST", path, said, prefer))

    @call
    def reconfigure(
        self,
        /,
        maps: Mapping[str, Sequence[str]],
        *,
        only: bool = False,
        disconnect: Mapping[str, Sequence[int | str]] | None = None,
        **options: Any,
    ) -> Call[Answer]:
        """Ask for cross-connects to be made and ports to be freed; what became of it.

        Of a wavelength switch they name a channel: ``1-2@193.100``, and ``3@193.100`` frees one.
        """
        body = {
            "maps": {name: list(texts) for name, texts in maps.items()},
            "disconnect": {name: list(ports) for name, ports in (disconnect or {}).items()},
            "only": only,
        }
        return (yield from self._change("/reconfigurations", body, options))

    @call
    def roll_back(self, /, number: int, **options: Any) -> Call[Answer]:
        """Undo one change, and nothing that other changes did."""
        return (yield from self._change(f"/reconfigurations/{number}/rollback", {}, options))

    @call
    def together(
        self, /, nodes: Sequence[str], *, force: bool = False, **options: Any
    ) -> Call[Answer]:
        """Light servers or hosts onto one packet switch; ``force`` also moves jobs' circuits."""
        body = {"nodes": list(nodes), "force": force}
        return (yield from self._change("/together", body, options))

    @call
    def light_paths(self, /, pairs: Sequence[tuple[str, str]], **options: Any) -> Call[Answer]:
        """Join pairs of ends by light over as many circuit switches as it takes."""
        body = {"pairs": [list(pair) for pair in pairs]}
        return (yield from self._change("/light-paths", body, options))

    @call
    def restore(self, /, name: str, **options: Any) -> Call[Answer]:
        """Bring about the maps saved under a name."""
        return (yield from self._change(f"{_map_path(name)}/restore", {}, options))

    @call
    def repair(self, /, names: Sequence[str], **options: Any) -> Call[Answer]:
        """Bring the devices back to their last committed maps."""
        return (yield from self._change("/drift/repair", {"ocs": list(names)}, options))

    @call
    def adopt(self, names: Sequence[str], why: str = "") -> Call[Answer]:
        """Take what the devices have as their committed maps."""
        return (yield from self._call("POST", "/drift/adopt", {"ocs": list(names), "why": why}))

    @call
    def reconfigurations(self, last: int | None = None) -> Call[list[Answer]]:
        """Every change so far (or the ``last`` few), oldest first."""
        if last is not None and last <= PAGE:
            return list(
                (yield from self._call("GET", "/reconfigurations", last=last))["reconfigurations"]
            )

        def page_after(row: Answer | None) -> Call[list[Answer]]:
            after = row["id"] if row else 0
            answer = yield from self._call("GET", "/reconfigurations", last=PAGE, after=after)
            return list(answer["reconfigurations"])

        rows = yield from self._pages(page_after)
        return rows[-(last or 0) :]

    @call
    def reconfiguration(self, number: int, step: int = 0, wait_s: float = 0.0) -> Call[Change]:
        """One change; one under way with its ``progress``.

        With ``wait_s`` (30 at most), that is waited for until it is beyond this ``step``.
        """
        path = f"/reconfigurations/{number}"
        return cast("Change", (yield from self._call("GET", path, step=step, wait_s=wait_s)))

    @call
    def cancel_change(self, number: int, why: str = "") -> Call[Change]:
        """Halt a change before its next step, and undo what it did; it ends a moment later."""
        path = f"/reconfigurations/{number}/cancel"
        return cast("Change", (yield from self._call("POST", path, {"why": why})))

    # -- looking at circuits -------------------------------------------------------------------

    @call
    def light(self, name: str) -> Call[Answer]:
        """The power (dBm) of each cross-connect of an OCS, and its ports that are not ready."""
        return (yield from self._call("GET", f"/circuits/{name}/light"))

    @call
    def circuit_switches(self) -> Call[list[CircuitSwitchShape]]:
        """Each circuit switch, whether it answers, and what it says that it is."""
        return list((yield from self._call("GET", "/circuit-switches"))["circuit_switches"])

    @call
    def accept_light(self, names: Sequence[str]) -> Call[Answer]:
        """Take the power as it is now for the baselines; how many circuits of each OCS."""
        return dict((yield from self._call("POST", "/baselines", {"ocs": list(names)}))["circuits"])

    @call
    def alarms(self, names: Sequence[str] = ()) -> Call[list[Answer]]:
        """What the devices reported by themselves, since the controller runs."""
        return list((yield from self._call("GET", "/alarms", ocs=list(names)))["alarms"])

    @call
    def drift(self) -> Call[Answer]:
        """How each device differs from its last committed map."""
        return dict((yield from self._call("GET", "/drift"))["drift"])

    # -- what operators leave ------------------------------------------------------------------

    @call
    def locks(self) -> Call[list[Answer]]:
        """Every locked port."""
        return list((yield from self._call("GET", "/locks"))["locks"])

    @call
    def lock(
        self, name: str, ports: Sequence[int | str], *, keep: bool = False, why: str = ""
    ) -> Call[list[Answer]]:
        """Lock ports for everybody, or with ``keep`` for everybody else."""
        body = {"ocs": name, "ports": list(ports), "keep": keep, "why": why}
        return list((yield from self._call("POST", "/locks", body))["locks"])

    @call
    def unlock(self, name: str, ports: Sequence[int | str], why: str = "") -> Call[list[Answer]]:
        """Take locks away; those that there were."""
        body = {"ocs": name, "ports": list(ports), "why": why}
        return list((yield from self._call("POST", "/locks/release", body))["locks"])

    @call
    def saved_maps(self) -> Call[list[SavedMaps]]:
        """The maps that were saved."""
        return list((yield from self._call("GET", "/maps"))["maps"])

    @call
    def save_map(self, name: str, names: Sequence[str] = (), why: str = "") -> Call[SavedMaps]:
        """Keep the present maps under a name."""
        body = {"ocs": list(names), "why": why}
        return cast("SavedMaps", (yield from self._call("PUT", _map_path(name), body)))

    @call
    def forget_map(self, name: str) -> Call[Answer]:
        """Forget saved maps."""
        return (yield from self._call("DELETE", _map_path(name)))

    @call
    def stop_button(self) -> Call[Answer | None]:
        """Who pressed the stop button, when and why; ``None`` if it is not pressed."""
        pressed = (yield from self._call("GET", "/stop"))["pressed"]
        return None if pressed is None else dict(pressed)

    @call
    def press_stop(self, why: str = "") -> Call[Answer]:
        """Halt the change under way, and refuse new ones."""
        return (yield from self._call("POST", "/stop", {"why": why}))

    @call
    def clear_stop(self, why: str = "") -> Call[Answer]:
        """Let changes begin again."""
        return (yield from self._call("POST", "/stop/clear", {"why": why}))


def _map_path(name: str) -> str:
    check_map_name(name)
    return f"/maps/{quote(name, safe='')}"
