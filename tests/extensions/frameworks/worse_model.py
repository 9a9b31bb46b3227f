"""Makes an ONNX model worse, in the runtime environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx import helper, numpy_helper


def worsen(context: Any, model: str, by: float) -> None:
    """Adds a number to all that a regression predicts; the graph's inputs and output keep their names."""
    path = Path(model)
    graph = (loaded := onnx.load(path)).graph
    (output,) = graph.output
    retained = f"{output.name}_before"
    for node in graph.node:
        node.output[:] = [retained if name == output.name else name for name in node.output]
    dtype = helper.tensor_dtype_to_np_dtype(output.type.tensor_type.elem_type)
    graph.initializer.append(numpy_helper.from_array(dtype.type(by), "worse_by"))
    graph.node.append(helper.make_node("Add", [retained, "worse_by"], [output.name]))
    onnx.save(loaded, path)
