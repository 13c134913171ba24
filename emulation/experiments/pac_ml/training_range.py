"""Where a learned policy was trained, and what of an evaluation lies outside of that.

A model is good for the load, the mix and the laws that it learned from. Loads between two that it
learned from count as met, as do errors of remaining times.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from patchlight.controller.policies.learned import Card
from patchlight.controller.policies.observation import written
from patchlight.emulation.experiments.pac_ml.variation import Variation
from patchlight.emulation.simulator.ramp.requirements import LAW_NAMES
from patchlight.emulation.simulator.ramp.scenario import FixedArrivals


def outside_training(
    card: Card, variation: Variation, law: str, models: Sequence[str], published: bool
) -> list[str]:
    """What is other here than where the model was trained, in words; none where all is as there.

    ``models`` are the names of those that jobs train here, ``published`` says whether their
    profiles are PipeDream's.
    """
    environment = _mapping(_mapping(card.training.get("config")).get("environment"))
    laws = environment.get("laws")
    if not isinstance(laws, list):
        return ["trained on what its card does not say"]
    found, instance = [], environment.get("law_instance")
    if law not in laws:
        found.append(f"trained on {_laws(laws)}, not on law {law}")
    elif law != LAW_NAMES[0] and instance is not None and instance != variation.law_instance:
        here = "made anew for each episode here"
        if variation.law_instance is not None:
            here = f"here it is instance {variation.law_instance}"
        found.append(f"trained on instance {instance} of law {law}, {here}")
    found += _other_conditions(environment, variation)
    if variation.milliseconds:
        found.append("trained on milliseconds that count as seconds")
    errors = [each.remaining_error for each in _conditions(environment)]
    if not min(errors) <= variation.remaining_error <= max(errors):
        told = f"remaining times that are off by {max(errors):g}"
        found.append(f"trained on {told if max(errors) else 'exact remaining times'}")
    trained_ramp = card.training.get("ramp")
    if isinstance(trained_ramp, list) and tuple(trained_ramp) != card.ramp:
        found.append(f"trained on a RAMP of {written(tuple(trained_ramp))} servers")
    if variation.failures is not None:
        found.append("trained on servers that never break")
    trained_models = card.training.get("models")
    if isinstance(trained_models, list) and sorted(map(str, trained_models)) != sorted(models):
        found.append(f"trained on {', '.join(map(str, trained_models))}")
    if card.training.get("profiles") == "PipeDream" and not published:
        found.append("trained on PipeDream's profiles")
    return found


def _other_conditions(environment: Mapping[str, Any], variation: Variation) -> list[str]:
    """What of arrivals and mix no training condition had."""
    trained = _conditions(environment)
    alike = [each for each in trained if dict(each.mix) == dict(variation.mix)]
    here = variation.arrivals
    kind = [each.arrivals for each in alike or trained if type(each.arrivals) is type(here)]
    met = [each.mean_interval_s for each in kind]
    found = []
    if not met or not min(met) <= here.mean_interval_s <= max(met):
        usual = f"trained on a job every {FixedArrivals().interval_s:g} s"
        told = environment.get("conditions", ())
        found.append(f"trained on {', '.join(told)}" if len(trained) > 1 else usual)
    if variation.mix and not alike:
        found.append("trained on all models alike")
    return found


def _conditions(environment: Mapping[str, Any]) -> list[Variation]:
    """What it was trained under."""
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
