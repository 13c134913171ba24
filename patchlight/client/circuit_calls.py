"""The calls of the REST API that are about circuits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack
from urllib.parse import quote

from patchlight.client.connection import PAGE, ApiConnection
from patchlight.testbed.lab.wiring import check_map_name
from patchlight.testbed.wire.rest.circuits import (
    Alarms,
    AlarmShape,
    AllSavedMaps,
    Baselines,
    ChangeAnswer,
    Changes,
    CircuitSwitches,
    CircuitSwitchShape,
    ClaimAnswer,
    ClaimsAnswer,
    DriftOf,
    DriftShape,
    LightAnswer,
    Lock,
    Locks,
    Named,
    PlanAnswer,
    Pressed,
    SavedMaps,
    StopButton,
)


class HowToChange(TypedDict, total=False):
    """Options of a change: see ``requests.ChangeRequest``. ``detach``: do not wait for its end."""

    why: str
    spare_jobs: bool
    force: bool
    planned_from: str
    detach: bool


class ClaimTerms(TypedDict, total=False):
    """What else a claim may have: see ``requests.ClaimRequest``."""

    gpus: Sequence[str]
    ports: Mapping[str, Sequence[int]]
    shape: str
    time_limit_s: float | None
    hold_s: float
    why: str


class CircuitCalls(ApiConnection):
    """Reading and changing circuits."""

    # -- changing circuits ---------------------------------------------------------------------
    # Each of these takes the options of ``HowToChange`` and answers with the change as it ended,
    # or as it began. Beside each is what answers with what would change.

    def _change(
        self,
        path: str,
        body: Mapping[str, Any],
        options: HowToChange,
    ) -> ChangeAnswer:
        given: dict[str, Any] = {**body, **options}
        prefer = "respond-async" if given.pop("detach", False) else ""
        return self._call(
            ChangeAnswer,
            "POST",
            path,
            given,
            prefer,
        )

    def _planned(self, path: str, body: Mapping[str, Any]) -> PlanAnswer:
        return self._call(PlanAnswer, "POST", path, {**body, "dry_run": True})

    def reconfigure(
        self,
        /,
        maps: Mapping[str, Sequence[str]],
        *,
        only: bool = False,
        disconnect: Mapping[str, Sequence[int | str]] | None = None,
        **options: Unpack[HowToChange],
    ) -> ChangeAnswer:
        """Make cross-connects and free ports.

        Of a wavelength switch they name a channel: ``1-2@193.100``, and ``3@193.100`` frees one.
        """
        return self._change(
            "/reconfigurations", _wanted(maps, disconnect, only=only), options
        )

    def preview_reconfiguration(
        self,
        /,
        maps: Mapping[str, Sequence[str]],
        *,
        only: bool = False,
        disconnect: Mapping[str, Sequence[int | str]] | None = None,
        force: bool = False,
    ) -> PlanAnswer:
        """What that would change, and the objections to it."""
        body = _wanted(maps, disconnect, only=only)
        return self._planned("/reconfigurations", {**body, "force": force})

    def roll_back(
        self, /, number: int, **options: Unpack[HowToChange]
    ) -> ChangeAnswer:
        """Undo one change, and nothing that other changes did."""
        return self._change(
            f"/reconfigurations/{number}/rollback", {}, options
        )

    def preview_roll_back(
        self, /, number: int, *, force: bool = False
    ) -> PlanAnswer:
        """What that would change."""
        path = f"/reconfigurations/{number}/rollback"
        return self._planned(path, {"force": force})

    def together(
        self,
        /,
        nodes: Sequence[str],
        **options: Unpack[HowToChange],
    ) -> ChangeAnswer:
        """Connect servers or hosts to one packet switch; ``force`` also moves jobs' circuits."""
        return self._change("/together", {"nodes": list(nodes)}, options)

    def preview_together(
        self, /, nodes: Sequence[str], *, force: bool = False
    ) -> PlanAnswer:
        """What that would change."""
        return self._planned(
            "/together", {"nodes": list(nodes), "force": force}
        )

    def light_paths(
        self,
        /,
        pairs: Sequence[tuple[str, str]],
        **options: Unpack[HowToChange],
    ) -> ChangeAnswer:
        """Connect pairs of ends by optical paths over any number of circuit switches."""
        return self._change(
            "/light-paths", {"pairs": list(map(list, pairs))}, options
        )

    def preview_light_paths(
        self,
        /,
        pairs: Sequence[tuple[str, str]],
        *,
        force: bool = False,
    ) -> PlanAnswer:
        """What that would change."""
        body = {"pairs": list(map(list, pairs)), "force": force}
        return self._planned("/light-paths", body)

    def restore(
        self, /, name: str, **options: Unpack[HowToChange]
    ) -> ChangeAnswer:
        """Restore the maps saved under a name."""
        return self._change(f"{_map_path(name)}/restore", {}, options)

    def preview_restore(
        self, /, name: str, *, force: bool = False
    ) -> PlanAnswer:
        """What that would change."""
        return self._planned(f"{_map_path(name)}/restore", {"force": force})

    def repair(
        self, /, names: Sequence[str], **options: Unpack[HowToChange]
    ) -> ChangeAnswer:
        """Bring the devices back to their last committed maps."""
        return self._change("/drift/repair", {"ocs": list(names)}, options)

    def preview_repair(self, /, names: Sequence[str]) -> PlanAnswer:
        """What that would change."""
        return self._planned("/drift/repair", {"ocs": list(names)})

    def adopt(self, names: Sequence[str], why: str = "") -> ChangeAnswer:
        """Commit the present maps of the devices."""
        return self._call(
            ChangeAnswer,
            "POST",
            "/drift/adopt",
            {"ocs": list(names), "why": why},
        )

    def reconfigurations(self, last: int | None = None) -> list[ChangeAnswer]:
        """Every change so far (or the ``last`` few), oldest first."""
        path = "/reconfigurations"
        if last is not None and last <= PAGE:
            return self._get(Changes, path, last=last).reconfigurations

        def page_after(
            row: ChangeAnswer | None,
        ) -> list[ChangeAnswer]:
            after = row.id if row else 0
            return self._get(
                Changes,
                path,
                last=PAGE,
                after=after,
            ).reconfigurations

        return self._pages(page_after)[-(last or 0) :]

    def past_reconfigurations(
        self,
        since: float,
        until: float,
        *,
        last: int = PAGE,
        before: int | None = None,
    ) -> list[ChangeAnswer]:
        """The ``last`` changes of a period, oldest first; with ``before``, of lower numbers."""
        wanted: dict[str, Any] = {} if before is None else {"before": before}
        wanted |= {"since": since, "until": until}
        return self._get(
            Changes,
            "/reconfigurations",
            last=last,
            **wanted,
        ).reconfigurations

    def reconfiguration(
        self,
        number: int,
        step: int = 0,
        wait_s: float = 0.0,
    ) -> ChangeAnswer:
        """One change; one under way with its ``progress``.

        With ``wait_s`` (30 at most), that is waited for until it is beyond this ``step``.
        """
        return self._get(
            ChangeAnswer,
            f"/reconfigurations/{number}",
            step=step,
            wait_s=wait_s,
        )

    def cancel_change(self, number: int, why: str = "") -> ChangeAnswer:
        """Halt a change before its next step, and undo what it did; it ends a moment later."""
        return self._call(
            ChangeAnswer,
            "POST",
            f"/reconfigurations/{number}/cancel",
            {"why": why},
        )

    # -- looking at circuits -------------------------------------------------------------------

    def light(self, name: str) -> LightAnswer:
        """The power (dBm) of each cross-connect of an OCS, and its ports that are not ready."""
        return self._get(LightAnswer, f"/circuits/{name}/light")

    def circuit_switches(self) -> list[CircuitSwitchShape]:
        """Each circuit switch, whether it answers, and its identity."""
        return self._get(CircuitSwitches, "/circuit-switches").circuit_switches

    def accept_light(self, names: Sequence[str]) -> dict[str, int]:
        """Take the present power as baselines; returns the number of circuits of each OCS."""
        return self._call(
            Baselines, "POST", "/baselines", {"ocs": list(names)}
        ).circuits

    def alarms(self, names: Sequence[str] = ()) -> list[AlarmShape]:
        """The alarms of the devices since the start of the controller."""
        return self._get(Alarms, "/alarms", ocs=list(names)).alarms

    def drift(self) -> dict[str, DriftOf]:
        """How each device differs from its last committed map."""
        return self._get(DriftShape, "/drift").drift

    # -- what operators leave ------------------------------------------------------------------

    def locks(self) -> list[Lock]:
        """Every locked port."""
        return self._get(Locks, "/locks").locks

    def lock(
        self,
        name: str,
        ports: Sequence[int | str],
        *,
        keep: bool = False,
        why: str = "",
    ) -> list[Lock]:
        """Lock ports for everybody, or with ``keep`` for everybody else."""
        body = {
            "ocs": name,
            "ports": list(ports),
            "keep": keep,
            "why": why,
        }
        return self._call(Locks, "POST", "/locks", body).locks

    def unlock(
        self,
        name: str,
        ports: Sequence[int | str],
        why: str = "",
    ) -> list[Lock]:
        """Remove locks, and return them."""
        body = {"ocs": name, "ports": list(ports), "why": why}
        return self._call(Locks, "POST", "/locks/release", body).locks

    # -- claims of other schedulers ------------------------------------------------------------

    def claim(
        self,
        name: str,
        nodes: Sequence[str] = (),
        **terms: Unpack[ClaimTerms],
    ) -> ClaimAnswer:
        """Request circuits for nodes, or renew the claim of that name if it is the same."""
        body = {"nodes": list(nodes), **terms}
        return self._call(
            ClaimAnswer,
            "PUT",
            _claim_path(name),
            body,
        )

    def claim_now(self, name: str, wait_s: float = 0.0) -> ClaimAnswer:
        """A claim; a waiting one after its turn or ``wait_s`` (30 at most)."""
        return self._get(ClaimAnswer, _claim_path(name), wait=wait_s)

    def claims(self) -> list[ClaimAnswer]:
        """Every claim, in the order of requests."""
        return self._get(ClaimsAnswer, "/claims").claims

    def release_claim(self, name: str) -> list[ClaimAnswer]:
        """End a claim; returns it, or nothing if there was none. Its circuits stay."""
        return self._call(ClaimsAnswer, "DELETE", _claim_path(name)).claims

    def saved_maps(self) -> list[SavedMaps]:
        """The maps that were saved."""
        return self._get(AllSavedMaps, "/maps").maps

    def save_map(
        self,
        name: str,
        names: Sequence[str] = (),
        why: str = "",
    ) -> SavedMaps:
        """Keep the present maps under a name."""
        return self._call(
            SavedMaps,
            "PUT",
            _map_path(name),
            {"ocs": list(names), "why": why},
        )

    def forget_map(self, name: str) -> Named:
        """Forget saved maps."""
        return self._call(Named, "DELETE", _map_path(name))

    def stop_button(self) -> Pressed | None:
        """Who pressed the stop button, when and why; ``None`` if it is not pressed."""
        return self._get(StopButton, "/stop").pressed

    def press_stop(self, why: str = "") -> StopButton:
        """Halt the change under way, and refuse new ones."""
        return self._call(StopButton, "POST", "/stop", {"why": why})

    def clear_stop(self, why: str = "") -> StopButton:
        """Let changes begin again."""
        return self._call(StopButton, "POST", "/stop/clear", {"why": why})


def _map_path(name: str) -> str:
    check_map_name(name)
    return f"/maps/{quote(name, safe='')}"


def _claim_path(name: str) -> str:
    check_map_name(name, "a claim")
    return f"/claims/{quote(name, safe='')}"


def _wanted(
    maps: Mapping[str, Sequence[str]],
    disconnect: Mapping[str, Sequence[int | str]] | None,
    *,
    only: bool,
) -> dict[str, Any]:
    return {
        "maps": {name: list(texts) for name, texts in maps.items()},
        "disconnect": {
            name: list(ports) for name, ports in (disconnect or {}).items()
        },
        "only": only,
    }
