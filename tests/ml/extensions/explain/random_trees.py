"""Served forests behind random columns, some made of several features that are rarely other than 0, and their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from skl2onnx import to_onnx
from sklearn.ensemble import RandomForestRegressor

from airflow_hops.ml.metrics.scoring import ScoredModel

Arrays = dict[str, Any]
JOINS: Any = {"Mul": np.multiply, "Max": np.maximum, "Min": np.minimum, "Sub": np.subtract, "Add": np.add}


def random_forest(folder: Path, seed: int, *, crosses: int) -> tuple[ScoredModel, Arrays, Arrays]:
    """Returns a served forest of flags and numbers, rows, and a background.

    Args:
        folder: Folder for the model.
        seed: Seed of everything.
        crosses: Number of columns made of two or three features.
    """
    random = np.random.default_rng(seed)
    count = int(random.integers(3, 7))
    names = [f"x{number}" for number in range(count)]
    rates = random.choice([0.02, 0.05, 0.1, 0.5], count)
    matrix = (random.random((3000, count)) < rates).astype(np.float32)
    numbers = random.random(count) < 0.3
    matrix[:, numbers] = random.exponential(1, (3000, int(numbers.sum()))).astype(np.float32)
    columns, parts, nodes = [matrix], list(names), []
    for number in range(crosses):
        chosen, join = random.choice(count, int(random.integers(2, 4)), replace=False), random.choice(list(JOINS))
        made, name = matrix[:, chosen[0]], names[chosen[0]]
        for index in chosen[1:]:
            made, input_name, name = JOINS[join](made, matrix[:, index]), name, f"c{number}_{index}"
            nodes.append(helper.make_node(join, [input_name, names[index]], [name]))
        if random.random() < 0.5:  # seldom above
            limit = np.float32(np.quantile(made, 0.97))
            made = (made > limit).astype(np.float32)
            nodes += [
                helper.make_node("Constant", [], [f"limit{number}"], value_float=float(limit)),
                helper.make_node("Greater", [name, f"limit{number}"], [f"above{number}"]),
                helper.make_node("Cast", [f"above{number}"], [f"c{number}"], to=TensorProto.FLOAT),
            ]
            name = f"c{number}"
        columns.append(made[:, None])
        parts.append(name)
    joined = np.concatenate(columns, axis=1)
    wanted = joined @ random.normal(0, 1, joined.shape[1]) + 2 * joined[:, -1] + random.normal(0, 0.1, 3000)
    forest = RandomForestRegressor(5, max_depth=5, random_state=seed).fit(joined, wanted)
    graph = to_onnx(forest, joined[:1], target_opset=18)
    taken = graph.graph.input[0].name
    nodes.append(helper.make_node("Concat", parts, [taken], axis=1))
    all_nodes = [*nodes, *graph.graph.node, helper.make_node("Identity", [graph.graph.output[0].name], ["prediction"])]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 1]) for name in names]
    output = helper.make_tensor_value_info("prediction", TensorProto.FLOAT, [None, 1])
    whole = helper.make_graph(all_nodes, "trees", inputs, [output], list(graph.graph.initializer))
    folder.mkdir(parents=True)
    onnx.save(helper.make_model(whole, opset_imports=graph.opset_import, ir_version=9), folder / "model.onnx")
    rows = random.choice(3000, int(random.choice([1, 3, 12])), replace=False)
    return ScoredModel(folder), *(
        {name: matrix[part, index] for index, name in enumerate(names)} for part in (rows, slice(30))
    )
