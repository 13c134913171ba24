"""Loads users' policy files: a Python file, or an ONNX model with its card.

A Python file is run like any program of its user. Pickled files are never loaded. A card is a JSON
file with the model's name, checked key by key. A model that weighs options has an ``OptionsCard``;
that of a partition policy is in ``learned``.
"""

import hashlib
import importlib.util
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from patchlight.controller.policies.contract import (
    KINDS,
    METHODS,
    Policy,
    PolicyKind,
    kind_of,
)
from patchlight.testbed.errors import BadInput, PackageMissing, nearest, reason
from patchlight.testbed.lab.model import Lab

_ARGUMENTS = {
    method: tuple(inspect.signature(getattr(protocol, method)).parameters)[1:]
    for protocol, method in zip(
        get_args(Policy), METHODS.values(), strict=True
    )
}

FORMAT = "patchlight-policy"
PLAIN_VERSION = 1
OPTIONS_VERSION = 2
"""Versions of cards: for one RAMP shape, and for options in any lab."""

FLOAT = "tensor(float)"
OUTPUT = "scores"
_MOST_CARD_BYTES = 1_000_000
_MOST_BYTES = 64_000_000

C = TypeVar("C")


def load_object(path: Path, name: str | None) -> object:
    """The class or object called ``name`` in a Python file; without a name its only policy.

    ``BadInput`` with the position in the file if it cannot be run, or has no such policy.
    """
    module = run_file(path)
    here = {
        found: value
        for found, value in vars(module).items()
        if not found.startswith("_")
        # NumPy, say, has a function called ``place``.
        and not inspect.ismodule(value)
        and kind_of(value) is not None
        and getattr(value, "__module__", module.__name__) == module.__name__
    }
    if name is None:
        if len(here) != 1:
            asked = (
                f"{path}:NAME with NAME one of {', '.join(here)}"
                if here
                else _wanted()
            )
            raise BadInput(
                f"{path} has {len(here) or 'no'} policies: expected {asked}"
            )
        (name,) = here
    if not hasattr(module, name):
        hint = (
            nearest(name, here, "its policies are")
            if here
            else f"expected {_wanted()}"
        )
        raise BadInput(f"{path} has no {name!r}: {hint}")
    found: object = getattr(module, name)
    check_methods(found, f"{path}:{name}")
    return found


def check_methods(policy: object, called: str) -> None:
    """``BadInput`` unless a class or object has one policy's method, with its arguments."""
    kind = kind_of(policy)
    if kind is None:
        has = [
            m for m in METHODS.values() if callable(getattr(policy, m, None))
        ]
        what = (
            f"has {' and '.join(has)}, more than one"
            if has
            else "is not a policy: it has none"
        )
        raise BadInput(
            f"{called} {what} of a policy's methods: expected {_wanted()}"
        )
    method = getattr(policy, METHODS[kind])
    asked = _ARGUMENTS[METHODS[kind]]
    given = ("self", *asked) if inspect.isclass(policy) else asked
    try:
        inspect.signature(method).bind(*given)
    except TypeError as error:
        raise BadInput(
            f"{called}: its method {METHODS[kind]} cannot be called with ({', '.join(asked)}): "
            f"{error}"
        ) from error
    except ValueError:  # Implemented in C, without a signature: the first decision will check it.
        pass


def _wanted() -> str:
    listed = ", ".join(
        f"{method} ({kind})" for kind, method in METHODS.items()
    )
    return f"a class or object with one of the methods {listed}"


def run_file(path: Path, what: str = "policy file") -> ModuleType:
    """A user's Python file as a module; ``BadInput`` with the position if it cannot be run."""
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        why = error.strerror or reason(error)
        raise BadInput(f"cannot read the {what} {path}: {why}") from error
    return _run_once(path, path.resolve(), changed)


@lru_cache(maxsize=64)
def _run_once(
    path: Path,
    resolved: Path,
    changed: int,
) -> ModuleType:
    """Once per state of the file, for all its policies."""
    # Named for its whole path, to distinguish files of equal names.
    digest = hashlib.sha256(str(resolved).encode()).hexdigest()[:12]
    name = f"patchlight_policy_{resolved.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, resolved)
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} cannot be read as Python")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up their module while they are created.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        sys.modules.pop(name, None)
        # The error's own file and line: it may be in an imported module.
        raise BadInput(
            f"{error.filename}:{error.lineno}: {error.msg}"
        ) from error
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [
            frame.lineno for frame in frames if frame.filename == str(resolved)
        ]
        place = f"{path}:{lines[-1]}" if lines else str(path)
        said = str(error) or "no message"
        raise BadInput(
            f"{place}: {type(error).__name__} while it ran: {said}"
        ) from error
    return module


MODELS = Path(__file__).resolve().parent / "models"


class CardError(BadInput):
    """A learned policy's card or file is wrong, or they do not match."""


def shipped_models() -> dict[str, Path]:
    """The built-in models: their names and files."""
    return {path.stem: path for path in sorted(MODELS.glob("*.onnx"))}


def raw_card(path: Path) -> dict[str, Any]:
    """The content of a card file, with its format checked; ``CardError`` if it is no card."""
    try:
        if path.stat().st_size > _MOST_CARD_BYTES:
            raise CardError(
                f"{path} is not a card of a learned policy: it is over 1 MB"
            )
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CardError(
            f"the learned policy has no card: {path} not found",
            hint="a model is two files, NAME.onnx and NAME.json: keep them together",
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CardError(
            f"cannot read the card {path}: {reason(error)}"
        ) from error
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise no_card(path, f'its "format" is not {FORMAT!r}')
    if raw.get("format_version") not in (PLAIN_VERSION, OPTIONS_VERSION):
        raise no_card(
            path,
            f"its format version is {raw.get('format_version')!r}; this Patchlight reads "
            f"{PLAIN_VERSION} and {OPTIONS_VERSION}",
        )
    return raw


def kinds_of(path: Path) -> tuple[PolicyKind, ...]:
    """The kinds of the learned policy in a file, from its card; without a card *partition*."""
    try:
        raw = raw_card(path.with_suffix(".json"))
    except CardError:
        return ("partition",)  # Loading it reports the mistake.
    named = raw.get("kinds")
    found = [
        kind for kind in KINDS if isinstance(named, list) and kind in named
    ]
    return cast(tuple[PolicyKind, ...], tuple(found)) or ("partition",)


def weighs_options(path: Path) -> bool:
    """Whether the card of a model is for a policy that weighs options."""
    return bool(
        raw_card(path.with_suffix(".json"))["format_version"]
        == OPTIONS_VERSION
    )


def no_card(path: Path, what: str) -> CardError:
    """The mistake of a file that should be a card."""
    return CardError(
        f"{path} is not a card of a learned policy: {what}",
        hint="a card is written by `patchlight policy train`",
    )


def card_fields(
    raw: Mapping[str, Any],
    card: type[C],
    path: Path,
    optional: set[str],
) -> Any:
    """The values of a card of this class, each of its type; else ``CardError``."""
    fields = {
        key: value
        for key, value in raw.items()
        if not key.startswith("format")
    }
    read_as = {
        int: int,
        float: (int, float),
        tuple: list,
        Mapping: dict,
    }
    kinds: dict[str, Any] = {
        name: read_as.get(get_origin(hint) or hint, str)
        for name, hint in get_type_hints(card).items()
    }
    unknown = sorted(set(fields) - set(kinds))
    missing = sorted(set(kinds) - set(fields) - optional)
    if unknown or missing:
        raise no_card(
            path, f"keys missing: {missing}, keys unknown: {unknown}"
        )
    for key, value in fields.items():
        if not isinstance(value, kinds[key]) or isinstance(value, bool):
            raise no_card(path, f"{key!r} is {value!r}")
    return fields


def open_model(path: Path, read_card: Callable[[Path], C]) -> tuple[C, Any]:
    """A model's card, and the model in ONNX Runtime, on one core.

    ``CardError`` if it is not an ONNX model, or its SHA-256 differs from the card's.
    """
    if path.suffix != ".onnx":
        raise CardError(
            f"cannot load {path} as a learned policy: expected a file named NAME.onnx",
            hint="models are ONNX files; pickles and checkpoints are never loaded",
        )
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise CardError(
                f"cannot load {path}: it is over {_MOST_BYTES // 1_000_000} MB"
            )
        content = path.read_bytes()
    except OSError as error:
        raise CardError(
            f"cannot read the learned policy {path}: {reason(error)}"
        ) from error
    card: Any = read_card(path.with_suffix(".json"))
    if (found := hashlib.sha256(content).hexdigest()) != card.sha256.lower():
        raise CardError(
            f"{path} does not match its card: its SHA-256 is {found[:16]}…, the card says "
            f"{card.sha256[:16]}…",
            hint="one of the two files was changed: export the model again",
        )
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise PackageMissing("a learned policy", error) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    runs_on = ["CPUExecutionProvider"]
    try:
        return card, onnxruntime.InferenceSession(
            content, options, providers=runs_on
        )
    except (
        Exception
    ) as error:  # ONNX Runtime's exceptions have no public base class.
        said = first_line(error)
        raise CardError(f"{path} is not a valid ONNX model: {said}") from error


def check_schema(
    card: Any,
    schema: str,
    version: int,
) -> None:
    """``CardError`` if a model expects another schema than the present one."""
    if (card.observation_schema, card.observation_version) != (
        schema,
        version,
    ):
        raise CardError(
            f"model {card.name!r} sees {card.observation_schema!r} version "
            f"{card.observation_version}; this Patchlight has {schema!r} version {version}",
            hint="train and export it again with this Patchlight",
        )


def first_line(error: Exception) -> str:
    """ONNX Runtime's error message, shortened."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def has_shape(shape: list[Any], wanted: tuple[int, ...]) -> bool:
    """Whether a model's shape accepts the wanted one; a name or nothing means any size."""
    return len(shape) == len(wanted) and all(
        not isinstance(have, int) or have == want
        for have, want in zip(shape, wanted, strict=True)
    )


FROM_JOBS = (
    "a job's duration: from 'iterations', 'gradient' and 'compute'; other jobs count as one hour",
    "a job's computation graph: from 'graph'; other jobs have none",
    "the ends of running jobs: from their remaining iterations and present link shares (the "
    "simulator knows them exactly)",
)
"""What a model sees of jobs in a lab, where that differs from the simulator."""


@dataclass(frozen=True)
class OptionsCard:
    """The card of a model that weighs options.

    ``tested_range``: the lowest and the highest value of each measure of labs (``lab_range``) on
    which it was tested. Larger job graphs are pooled to ``most_operations``. ``training`` has the
    settings and the test's results.
    """

    name: str
    kinds: tuple[str, ...]
    observation_schema: str
    observation_version: int
    most_operations: int
    trained_on: str
    tested_range: Mapping[str, Any]
    code_version: str
    sha256: str
    notes: str = ""
    training: Mapping[str, Any] = field(default_factory=dict)

    def written(self) -> str:
        """As JSON text; ``read_options_card`` reads it."""
        found = {
            "format": FORMAT,
            "format_version": OPTIONS_VERSION,
            **asdict(self),
        }
        return (
            json.dumps(
                found,
                indent=2,
                ensure_ascii=False,
            )
            + "\n"
        )


def read_options_card(path: Path) -> OptionsCard:
    """The card in a file; ``CardError`` with its mistake."""
    raw = raw_card(path)
    if raw["format_version"] != OPTIONS_VERSION:
        raise no_card(path, "it is for a partition policy of one RAMP")
    fields = card_fields(
        raw,
        OptionsCard,
        path,
        {"notes", "training"},
    )
    kinds = fields["kinds"]
    if (
        not kinds
        or len(set(kinds)) != len(kinds)
        or not set(kinds) <= set(KINDS)
    ):
        raise no_card(
            path, f"'kinds' is {kinds}: expected some of {', '.join(KINDS)}"
        )
    for name, bounds in fields["tested_range"].items():
        numbers = isinstance(bounds, list) and all(
            type(n) in (int, float) for n in bounds
        )
        if not numbers or len(bounds) != 2 or not bounds[0] <= bounds[1]:
            raise no_card(
                path,
                f"'tested_range' of {name!r} is {bounds!r}: expected two numbers",
            )
    return OptionsCard(**{**fields, "kinds": tuple(kinds)})


def lab_range(lab: Lab) -> dict[str, float]:
    """A lab's measures, whose tested ranges are in cards."""
    hosts = [host for host in lab.hosts if host.gpu is not None]
    nics_bps = sum(host.nic.rate_bps or 0 for host in hosts)
    switches = {switch.name for switch in lab.packet_switches}
    trunks_bps = sum(
        fibre.rate_bps or 0
        for fibre in lab.fibres
        if {fibre.a.device, fibre.b.device} <= switches
        and fibre.a.device != fibre.b.device
    )
    found = {
        "gpus": float(len(hosts)),
        "servers": float(len(lab.servers)),
        "packet switches": float(len(lab.packet_switches)),
        "circuit switches": float(len(lab.circuit_switches)),
        "GPU models": float(
            len({host.gpu.model for host in hosts if host.gpu is not None})
        ),
    }
    if nics_bps and trunks_bps:
        found["NICs' rate relative to links between switches"] = round(
            nics_bps / trunks_bps, 3
        )
    return found


def outside_range(
    tested: Mapping[str, tuple[float, float]], lab: Lab
) -> list[str]:
    """What of a lab is outside the range in which a model was tested, as text."""
    if not tested:
        return ["everything: the model was not tested"]
    found = []
    for name, value in lab_range(lab).items():
        if name not in tested:
            continue
        lowest, highest = tested[name]
        if not lowest <= value <= highest:
            found.append(
                f"{name}: {value:g} here, tested with {lowest:g} to {highest:g}"
            )
    return found


def missing_inputs(lab: Lab) -> list[str]:
    """What is unknown about a lab, so that a model sees it as 0 or unknown, as text."""
    hosts = [host for host in lab.hosts if host.gpu is not None]
    found = []
    without_rate = sum(not host.nic.rate_bps for host in hosts)
    if without_rate:
        found.append(
            f"the rate of {without_rate} of {len(hosts)} NICs: they count as unlimited"
        )
    if not lab.circuit_switches:
        found.append("circuits: the lab has no circuit switch")
    elif not any(fibre.loss_db for fibre in lab.fibres):
        found.append(
            "the loss of fibres: only the loss of circuit switches is included"
        )
    return found
