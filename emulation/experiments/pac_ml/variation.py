"""PAC-ML's experiment under other arrivals, models or failures, and what a model was not trained
on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from patchlight.controller.policies.learned import Card
from patchlight.controller.policies.observation import written
from patchlight.emulation.simulator.outages import Outages
from patchlight.emulation.simulator.ramp import scenario as scenarios
from patchlight.emulation.simulator.ramp.ramp import PAC_ML_SHAPE, RampShape
from patchlight.emulation.simulator.ramp.workloads import (
    LAW_NAMES,
    Device,
    Workloads,
)
from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.graphs import ComputationGraph
from patchlight.testbed.units import write_time

MAX_SERVERS = 65_536
MAX_ARRIVALS = 1_000_000
_MILLISECOND = 1e-3


@dataclass(frozen=True)
class Variation:
    """Differences from the paper's experiment; none by default.

    ``mix``: shares of the jobs by model. ``law_instance`` fixes laws B, C and D, which are else
    made for each episode (``requirements.SkewNormal``). With ``milliseconds`` the profiles' times
    are what they say, and jobs come in a thousandth of the time. ``remaining_error``: ``Scenario``.
    """

    ramp: RampShape = PAC_ML_SHAPE
    arrivals: scenarios.Arrivals = field(
        default_factory=scenarios.FixedArrivals
    )
    mix: tuple[tuple[str, float], ...] = ()
    failures: Outages | None = None
    horizon_s: float = scenarios.PAC_ML_HORIZON_S
    law_instance: int | None = None
    milliseconds: bool = False
    remaining_error: float = 0.0

    @classmethod
    def parse(
        cls,
        ramp: str | None = None,
        arrivals: str | None = None,
        mix: str | None = None,
        failures: str | None = None,
        milliseconds: bool = False,
        remaining_error: float = 0.0,
    ) -> Variation:
        """Parses ``4x4x2``, ``poisson:1000``, ``vgg16=3,gnmt=1``, ``30d:4h``; else ``BadInput``."""
        second = _MILLISECOND if milliseconds else 1.0
        usual = scenarios.FixedArrivals(
            scenarios.FixedArrivals().interval_s * second
        )
        return cls(
            PAC_ML_SHAPE if ramp is None else _shape(ramp),
            usual
            if arrivals is None
            else _arrivals(arrivals, scenarios.PAC_ML_HORIZON_S * second),
            () if mix is None else _mix(mix),
            (
                failures
                and Outages.parse(f"server:{failures.removeprefix('server:')}")
            )
            or None,
            milliseconds=milliseconds,
            remaining_error=remaining_error,
        )

    @classmethod
    def under(cls, condition: str, usual_error: float = 0.0) -> Variation:
        """Parses a training condition like ``fixed:150 error:0.3 gnmt=1``."""
        arrivals, _, rest = condition.strip().partition(" ")
        error = usual_error
        mix = rest.strip()
        if mix.startswith("error:"):
            written, _, mix = mix.removeprefix("error:").partition(" ")
            error = _error(written)
        return cls.parse(
            arrivals=arrivals,
            mix=mix.strip() or None,
            remaining_error=error,
        )

    @property
    def written(self) -> dict[str, str]:
        """The differences from the paper, apart from the laws, as users write them."""
        usual = Variation.parse(milliseconds=self.milliseconds)
        found: dict[str, str] = {}
        if self.ramp != usual.ramp:
            found["ramp"] = (
                f"{self.ramp.groups}x{self.ramp.racks}x{self.ramp.servers}"
            )
        if self.arrivals != usual.arrivals:
            kind = (
                "fixed"
                if isinstance(self.arrivals, scenarios.FixedArrivals)
                else "poisson"
            )
            found["arrivals"] = f"{kind}:{self.arrivals.mean_interval_s:g}"
        if self.mix:
            found["mix"] = ",".join(
                f"{name}={share:g}" for name, share in self.mix
            )
        if self.failures is not None:
            means = (self.failures.mean_up_s, self.failures.mean_down_s)
            found["failures"] = ":".join(map(write_time, means))
        if self.milliseconds:
            found["times"] = "milliseconds"
        if self.remaining_error:
            found["remaining error"] = f"{self.remaining_error:g}"
        return found

    def check_models(self, graphs: Sequence[ComputationGraph]) -> None:
        """``BadInput`` if the mix names a model that is none of these."""
        names = [graph.name for graph in graphs]
        for name, _ in self.mix:
            if name not in names:
                known = nearest(name, names, "the models are")
                raise BadInput(f"the job mix has {name!r}: {known}")

    def workloads(self, graphs: Sequence[ComputationGraph]) -> Workloads:
        """The models on this cluster."""
        self.check_models(graphs)
        device = (
            Device(seconds_per_ms=_MILLISECOND) if self.milliseconds else None
        )
        return Workloads(graphs, self.ramp, device=device)

    def scenario(
        self,
        workloads: Workloads,
        law: str,
        rule: str,
    ) -> scenarios.Scenario:
        """The experiment so varied."""
        second = _MILLISECOND if self.milliseconds else 1.0
        plain = scenarios.pac_ml_scenario(
            workloads,
            law,
            rule,
            self.horizon_s * second,
            self.law_instance,
        )
        shares = dict(self.mix)
        return replace(
            plain,
            arrivals=self.arrivals,
            failures=self.failures,
            remaining_error=self.remaining_error,
            mix=tuple(shares.get(name, 0.0) for name in workloads.names)
            if shares
            else None,
            replication=None if shares else plain.replication,
        )


def _shape(text: str) -> RampShape:
    match = re.fullmatch(r"(\d{1,4})[x×](\d{1,4})[x×](\d{1,4})", text.strip())
    if match is None or "0" in (
        part.lstrip("0") or "0" for part in match.groups()
    ):
        raise BadInput(
            f"{text!r} is not a RAMP: expected groups x racks in each x servers in each, like 4x4x2"
        )
    shape = RampShape(*(int(part) for part in match.groups()))
    if shape.size > MAX_SERVERS:
        raise BadInput(
            f"a RAMP of {shape.size} servers: expected {MAX_SERVERS} at most"
        )
    return shape


def _arrivals(text: str, horizon_s: float) -> scenarios.Arrivals:
    kind, _, written = text.strip().partition(":")
    kinds: dict[str, Callable[[float], scenarios.Arrivals]] = {
        "fixed": scenarios.FixedArrivals,
        "poisson": scenarios.PoissonArrivals,
    }
    if kind not in kinds:
        raise BadInput(
            f"invalid arrivals {text!r}: {nearest(kind, kinds)}, with the mean interval in "
            f"seconds, like poisson:1000"
        )
    try:
        interval_s = float(written)
    except ValueError:
        raise BadInput(
            f"{text!r} lacks the mean interval: expected seconds, like {kind}:1000"
        ) from None
    found = kinds[kind](interval_s)
    if horizon_s / interval_s > MAX_ARRIVALS:
        raise BadInput(
            f"a job each {interval_s:g} s for {horizon_s:g} s: expected "
            f"{MAX_ARRIVALS:,} jobs at most"
        )
    return found


def _error(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= scenarios.MAX_ERROR:
        raise BadInput(
            f"'error:{text}' is not an error: expected 0 to {scenarios.MAX_ERROR:g}, like error:0.3"
        )
    return found


def _mix(text: str) -> tuple[tuple[str, float], ...]:
    found: dict[str, float] = {}
    for part in text.split(","):
        name, sign, share = part.strip().partition("=")
        try:
            value = float(share) if sign else -1.0
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf") or name in found:
            raise BadInput(
                f"the job mix has {part.strip()!r}: expected each model once with its "
                "share, like vgg16=3,gnmt=1"
            )
        found[name] = value
    if not any(found.values()):
        raise BadInput(f"the job mix is {text!r}: expected a share above 0")
    return tuple(found.items())


def outside_training(
    card: Card,
    variation: Variation,
    law: str,
    models: Sequence[str],
    published: bool,
) -> list[str]:
    """The differences to the model's training, a line each."""
    environment = _mapping(
        _mapping(card.training.get("config")).get("environment")
    )
    laws = environment.get("laws")
    if not isinstance(laws, list):
        return ["trained on conditions that its card lacks"]
    found = []
    instance = environment.get("law_instance")
    if law not in laws:
        found.append(f"trained on {_laws(laws)}, not on law {law}")
    elif (
        law != LAW_NAMES[0]
        and instance is not None
        and instance != variation.law_instance
    ):
        here = "new in each episode here"
        if variation.law_instance is not None:
            here = f"here it is instance {variation.law_instance}"
        found.append(f"trained on instance {instance} of law {law}, {here}")
    found += _other_conditions(environment, variation)
    if variation.milliseconds:
        found.append("trained on milliseconds taken as seconds")
    errors = [each.remaining_error for each in _conditions(environment)]
    if not min(errors) <= variation.remaining_error <= max(errors):
        told = f"remaining times with an error of {max(errors):g}"
        found.append(
            f"trained on {told if max(errors) else 'exact remaining times'}"
        )
    trained_ramp = card.training.get("ramp")
    if isinstance(trained_ramp, list) and tuple(trained_ramp) != card.ramp:
        found.append(
            f"trained on a RAMP of {written(tuple(trained_ramp))} servers"
        )
    if variation.failures is not None:
        found.append("trained on servers that never fail")
    trained_models = card.training.get("models")
    if isinstance(trained_models, list) and sorted(
        map(str, trained_models)
    ) != sorted(models):
        found.append(f"trained on {', '.join(map(str, trained_models))}")
    if card.training.get("profiles") == "PipeDream" and not published:
        found.append("trained on PipeDream's profiles")
    return found


def _other_conditions(
    environment: Mapping[str, Any], variation: Variation
) -> list[str]:
    """Arrivals and mix that no training condition had."""
    trained = _conditions(environment)
    alike = [each for each in trained if dict(each.mix) == dict(variation.mix)]
    here = variation.arrivals
    kind = [
        each.arrivals
        for each in alike or trained
        if type(each.arrivals) is type(here)
    ]
    met = [each.mean_interval_s for each in kind]
    found = []
    if not met or not min(met) <= here.mean_interval_s <= max(met):
        usual = f"trained on a job every {scenarios.FixedArrivals().interval_s:g} s"
        told = environment.get("conditions", ())
        found.append(
            f"trained on {', '.join(told)}" if len(trained) > 1 else usual
        )
    if variation.mix and not alike:
        found.append("trained on equal shares of models")
    return found


def _conditions(environment: Mapping[str, Any]) -> list[Variation]:
    """Its training conditions."""
    told = environment.get("conditions")
    conditions = told if isinstance(told, list) and told else ["fixed:1000"]
    usual = environment.get("remaining_error")
    error = usual if isinstance(usual, float) else 0.0
    return [Variation.under(str(each), error) for each in conditions]


def _laws(names: Sequence[Any]) -> str:
    shown = [str(name) for name in dict.fromkeys(map(str, names))]
    return f"law {shown[0]}" if len(shown) == 1 else f"laws {', '.join(shown)}"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
