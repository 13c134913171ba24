"""Models that weigh options, made by hand: no PyTorch is needed for them."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from patchlight.controller.policies.files import OptionsCard
from patchlight.controller.policies.options.observation import (
    ARRAYS,
    COST,
    OPTION_FEATURES,
    SCHEMA,
    VERSION,
)


def cheapest_model(
    *,
    features: tuple[int, ...] = (COST,),
    factor: float = -1.0,
    rows: Any = "options",
    columns: int = OPTION_FEATURES,
    given: str = "options",
    output: str = "scores",
) -> bytes:
    """Scores each option by some of its features; as it stands, by what it is predicted to cost."""
    weights = np.zeros((columns, 1), np.float32)
    weights[[min(feature, columns - 1) for feature in features]] = factor
    kind = (
        TensorProto.INT64
        if ARRAYS.get(given, ("float32", 0))[0] == "int64"
        else None
    )
    made = [
        helper.make_node("Cast", [given], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["numbers", "weights"], ["column"]),
        helper.make_node(
            "ReduceSum", ["column", "axes"], [output], keepdims=0
        ),
    ]
    constants = [
        numpy_helper.from_array(weights, "weights"),
        numpy_helper.from_array(np.array([1], np.int64), "axes"),
    ]
    inputs = [
        helper.make_tensor_value_info(
            given, kind or TensorProto.FLOAT, [rows, columns]
        )
    ]
    outputs = [
        helper.make_tensor_value_info(output, TensorProto.FLOAT, [rows])
    ]
    graph = helper.make_graph(made, "g", inputs, outputs, constants)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 8
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def write_option_model(
    folder: Path,
    kinds: tuple[str, ...] = ("placement",),
    content: bytes | None = None,
    **changes: Any,
) -> Path:
    """A model and its card in a folder, the card with these changes; the model's path."""
    content = cheapest_model() if content is None else content
    path = folder / "weighs.onnx"
    path.write_bytes(content)
    tested = {"gpus": (8.0, 64.0), "circuit switches": (1.0, 4.0)}
    sha256 = hashlib.sha256(content).hexdigest()
    card = OptionsCard(
        "weighs",
        kinds,
        SCHEMA,
        VERSION,
        64,
        "nothing",
        tested,
        "0",
        sha256,
        "Made by hand.",
    )
    path.with_suffix(".json").write_text(
        json.dumps(json.loads(card.written()) | changes)
    )
    return path
