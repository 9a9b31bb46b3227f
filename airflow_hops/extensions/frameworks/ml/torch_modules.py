"""PyTorch."""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput
from airflow_hops.core.serving_api import tensors
from airflow_hops.extensions.frameworks.ml.converter_fixes import (
    refuse_negative_indices,
)
from airflow_hops.extensions.frameworks.ml.onnx_converters import (
    OPSET,
    Graph,
    OnnxFramework,
    converting,
)
from airflow_hops.ml.models.champion import check_architecture
from airflow_hops.ml.models.samples import Sample
from airflow_hops.serving.models.model_signature import MATRIX_INPUT, EstimatorInputs

if TYPE_CHECKING:
    import torch

_STATE, _ARCHITECTURE = "state.pt", "architecture.json"


class Torch(OnnxFramework):
    """PyTorch: a ``torch.nn.Module``."""

    package = "torch"
    distributions = ("torch",)

    def predict(self, model: torch.nn.Module, sample: Sample, target: Target) -> Any:
        """Returns the model's own predictions for rows."""
        import torch

        model = _uncompiled(model).eval()
        try:
            with torch.no_grad():
                answers = model(_rows_for(model, sample.matrix))
        except RuntimeError as error:  # also of shapes and dtypes
            raise ValueError(str(error)) from error
        if isinstance(answers, Mapping):
            return {name: values.cpu().numpy() for name, values in answers.items()}
        return answers if isinstance(answers, list | tuple) else answers.cpu().numpy()

    def save(self, model: object, folder: Path) -> None:
        """Writes the module's parameters and buffers, and a description of its parts."""
        import torch

        torch.save(_uncompiled(model).state_dict(), folder / _STATE)
        (folder / _ARCHITECTURE).write_text(json.dumps(_architecture(model), indent=1))

    def load(self, folder: Path, model: object = None) -> Any:
        """Gives the module the stored parameters and buffers; raises BadInput if it has others."""
        import torch

        if not isinstance(model, torch.nn.Module):
            raise BadInput(f"load() got {type(model).__name__}; expected a torch.nn.Module as it was trained")
        state = torch.load(folder / _STATE, map_location="cpu", weights_only=True)
        if (architecture := folder / _ARCHITECTURE).exists():  # of versions since 0.1.0
            check_architecture(json.loads(architecture.read_text()), _architecture(model))
        try:
            getattr(model, "_orig_mod", model).load_state_dict(state)
        except RuntimeError as error:
            raise BadInput(f"{error}; load it before the module is wrapped or sharded") from error
        return model

    def convert(self, model: torch.nn.Module, sample: Sample, target: Target) -> Graph:
        """Returns the model as an ONNX graph."""
        import torch

        content = io.BytesIO()
        model = _uncompiled(model)
        rows = _rows_for(model, sample.matrix[:2])
        with torch.no_grad():
            result = model(rows)
        names = {name: f"output/{name}" for name in result} if isinstance(result, Mapping) else {"": "output"}

        class Served(torch.nn.Module):
            """Takes float32, as in requests, and returns outputs in order, since a graph does not have their names."""

            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, matrix: torch.Tensor) -> object:
                result = self.model(matrix.to(rows.dtype))
                return tuple(result[name] for name in names) if isinstance(result, Mapping) else result

        axes = {name: {0: "batch"} for name in (MATRIX_INPUT, *names.values())}
        with converting(model):
            torch.onnx.export(
                Served().eval(),
                (rows.float(),),
                content,
                input_names=[MATRIX_INPUT],
                output_names=list(names.values()),
                dynamic_axes=axes,
                opset_version=OPSET,
                dynamo=False,
            )
        graph = importlib.import_module("onnx").load_from_string(content.getvalue())
        tables = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Embedding)]
        refuse_negative_indices(graph.graph, [f"{name}.weight" for name in tables])
        inputs = EstimatorInputs({MATRIX_INPUT: tensors.BY_NAME["float"]}, sample.matrix.shape[1])
        return Graph(graph.SerializeToString(), inputs, names)


def _architecture(model: torch.nn.Module) -> list[str]:
    """Returns name, class and settings of a module and the modules within it, compiled or not."""
    return [
        f"{(name + '.').replace('_orig_mod.', '').strip('.')}: {type(each).__name__}({each.extra_repr()})"
        for name, each in model.named_modules()
        if not hasattr(each, "_orig_mod")
    ]


def _uncompiled(model: torch.nn.Module) -> torch.nn.Module:
    """Returns a module without ``torch.compile``, also in the modules within it; ONNX needs its Python code."""
    model = getattr(model, "_orig_mod", model)
    model._compiled_call_impl = None  # set by model.compile()
    for name, part in model.named_children():
        setattr(model, name, _uncompiled(part))
    return model


def _rows_for(model: torch.nn.Module, matrix: np.ndarray) -> torch.Tensor:
    """Returns a matrix as a tensor of the type and on the device of the model's parameters.

    Raises:
        BadInput: They have less precision than float32, which the server does not compute with.
    """
    import torch

    parameters = [parameter for parameter in model.parameters() if parameter.is_floating_point()] or [torch.empty(0)]
    low = next((each.dtype for each in parameters if each.dtype not in (torch.float32, torch.float64)), None)
    if low is not None:
        raise BadInput(f"{type(model).__name__} has parameters of {low}; return model.float(), which serves the same")
    return torch.from_numpy(matrix).to(parameters[0].device, parameters[0].dtype)
