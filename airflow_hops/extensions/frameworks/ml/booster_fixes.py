"""Corrections of onnxmltools' converters of boosted trees (1.16), whose graphs compute differently from the models."""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx
    from skl2onnx.common._container import ModelComponentContainer
    from skl2onnx.common._topology import Operator, Scope

Array = np.ndarray

_OPSET = 15
_INFINITE = 1e300
"""LightGBM's dump has this for an infinite threshold, which float32 makes infinite again."""


@dataclass(frozen=True)
class BoosterInputs:
    """Values that boosted trees replace by other values.

    Attributes:
        nan_as_zero: By feature, whether a missing value counts as 0.
        zero_as_nan: By feature, whether 0 counts as missing.
        truncated: By feature, whether it is a category, whose digits after the point do not count.
        missing: The number that counts as missing in every feature; NaN if there is none.
    """

    nan_as_zero: Array
    zero_as_nan: Array
    truncated: Array
    missing: float = np.nan

    @classmethod
    def of(cls, model: Any) -> BoosterInputs:
        """Returns the inputs of a model of LightGBM or XGBoost."""
        if type(model).__module__.startswith("xgboost"):
            none = np.zeros(0, bool)
            result = getattr(model, "missing", None)
            return cls(none, none, none, np.nan if result is None else float(result))
        booster = getattr(model, "booster_", model)
        dump = booster.dump_model()
        kinds: list[set[str]] = [set() for _ in range(booster.num_feature())]
        nodes = [tree["tree_structure"] for tree in dump["tree_info"]]
        while nodes:
            node = nodes.pop()
            if "split_feature" in node:
                kind = "category" if node["decision_type"] == "==" else node["missing_type"]
                kinds[node["split_feature"]].add(kind)
                nodes += [node["left_child"], node["right_child"]]
        none, zero, category = (
            np.array([kinds_of == {kind} for kinds_of in kinds]) for kind in ("None", "Zero", "category")
        )
        return cls(none, zero, category)

    def nodes(self, source: str, output: str) -> list[tuple[str, list[str], list[str], dict[str, object]]]:
        """Returns operators that make the trees' input: type, inputs, outputs and attributes; none if not needed."""
        onnx = importlib.import_module("onnx")
        made: list[tuple[str, list[str], list[str], dict[str, Any]]] = []

        def constant(value: object) -> str:
            name = f"{output}/constant {len(made)}"
            made.append(("Constant", [], [name], {"value": onnx.numpy_helper.from_array(np.asarray(value), name)}))
            return name

        def add(kind: str, *inputs: str, **attributes: object) -> str:
            name = f"{output}/{kind} {len(made)}"
            made.append((kind, list(inputs), [name], attributes))
            return name

        def replaced(values: str, where: str, features: Array, by: str) -> str:
            return add("Where", add("And", where, constant(features[np.newaxis])), by, values)

        values, number = add("Cast", source, to=onnx.TensorProto.FLOAT), np.float32
        if self.truncated.any():
            whole = add("Mul", add("Sign", values), add("Floor", add("Abs", values)))
            values = add("Where", constant(self.truncated[np.newaxis]), whole, values)
        if self.nan_as_zero.any():
            values = replaced(values, add("IsNaN", values), self.nan_as_zero, constant(number(0)))
        if self.zero_as_nan.any():
            is_zero = add("LessOrEqual", add("Abs", values), constant(number(1e-35)))
            values = replaced(values, is_zero, self.zero_as_nan, constant(number(np.nan)))
        if not np.isnan(self.missing):
            values = add(
                "Where", add("Equal", values, constant(number(self.missing))), constant(number(np.nan)), values
            )
        if len(made) == 1:
            return []
        return [*made, ("Identity", [values], [output], {})]

    def correct(self, model: Any) -> None:
        """Changes the input of all trees of an ONNX model."""
        onnx = importlib.import_module("onnx")
        graph, output = model.graph, "as the trees see it"
        trees = [node for node in graph.node if node.op_type.startswith("TreeEnsemble")]
        made = self.nodes(trees[0].input[0], output) if trees else []
        for number, (kind, inputs, outputs, attributes) in enumerate(made):
            graph.node.insert(number, onnx.helper.make_node(kind, inputs, outputs, **attributes))
        for node in trees:
            node.input[0] = output if made else node.input[0]
        for opset in model.opset_import:
            if made and not opset.domain:  # a converter states the lowest that has its operators
                opset.version = max(opset.version, _OPSET)

    @classmethod
    def converter(cls, convert: Any) -> object:
        """Wraps a converter within skl2onnx to change the trees' input."""

        def corrected(scope: Scope, operator: Operator, container: ModelComponentContainer) -> None:
            source = operator.input_full_names[0]
            output = scope.get_unique_variable_name("as_the_trees_see_it")
            model = operator.raw_operator
            made = cls.of(model).nodes(source, output)
            for kind, inputs, outputs, attributes in made:
                container.add_node(
                    kind, inputs, outputs, op_version=_OPSET, name=scope.get_unique_operator_name(kind), **attributes
                )
            count = len(container.nodes)
            with convertible(model) as operator.raw_operator:
                convert(scope, operator, container)
            operator.raw_operator = model
            for node in container.nodes[count:]:
                if node.op_type.startswith("TreeEnsemble"):
                    correct_classes(node, model)
                    node.input[0] = output if made else node.input[0]

        return corrected


def _xgboost_booster(model: Any) -> Any:
    return model.get_booster() if hasattr(model, "get_booster") else model


def _parallel_trees(booster: Any) -> int:
    learner = json.loads(booster.save_config())["learner"]
    return int(learner["gradient_booster"]["gbtree_model_param"]["num_parallel_tree"])


@contextlib.contextmanager
def convertible(model: Any) -> Iterator[Any]:
    """Yields a model of boosted trees that its converter converts as the model predicts.

    Of an early-stopped model it has the trees up to the best iteration: LightGBM's converter fails with others, and
    XGBoost's counts parallel trees as iterations. Thresholds of LightGBM are rounded down to float32, as rows are
    float32: the nearest may be a row's own value. XGBoost's count only NaN as missing, and names its features f0, f1, …
    """
    if type(model).__module__.startswith("lightgbm"):
        booster = getattr(model, "booster_", model)
        best = booster.best_iteration if 0 < booster.best_iteration < booster.current_iteration() else None
        if booster is model and best is not None:
            model = booster = type(model)(model_str=model.model_to_string(num_iteration=best))
        dumped = booster.dump_model()
        _round_thresholds([tree["tree_structure"] for tree in dumped["tree_info"]])
        booster.is_mock, booster.dump_model = True, lambda **_: dumped  # the converter's way to another dump
        try:
            yield model
        finally:
            del booster.is_mock, booster.dump_model
        return
    if not type(model).__module__.startswith("xgboost"):
        yield model
        return
    is_estimator = hasattr(model, "get_booster")
    model = copy.copy(model) if is_estimator else model
    booster = _xgboost_booster(model)
    if is_estimator:
        with contextlib.suppress(AttributeError):  # it was not stopped early
            booster = model._Booster = booster[: model.best_iteration + 1]
        model.missing, model.n_estimators = np.nan, booster.num_boosted_rounds() * _parallel_trees(booster)
    names = booster.feature_names
    booster.feature_names = [f"f{number}" for number in range(booster.num_features())]
    try:
        yield model
    finally:
        booster.feature_names = names


def _round_thresholds(nodes: list[dict[str, Any]]) -> None:
    while nodes:
        node = nodes.pop()
        if "split_feature" in node:
            nodes += [node["left_child"], node["right_child"]]
            if node["decision_type"] == "<=" and abs(node["threshold"]) < _INFINITE:
                node["threshold"] = float(round_down(np.array([node["threshold"]]))[0])


def round_down(thresholds: Array) -> Array:
    """Returns the greatest float32 numbers that are not above some float64 numbers."""
    nearest = thresholds.astype(np.float32)
    return np.where(nearest > thresholds, np.nextafter(nearest, np.float32(-np.inf)), nearest)


def correct_classes(node: onnx.NodeProto, model: Any) -> None:
    """Corrects the classes of the trees of XGBoost, and adds the base values of two classes to their first trees.

    The converter alternates classes also among parallel trees, and onnxruntime 1.31 reads base values of two classes as
    of one and its opposite.
    """
    onnx = importlib.import_module("onnx")
    values = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    if not type(model).__module__.startswith("xgboost") or len(set(values.get("class_ids", ()))) < 2:
        return
    booster = _xgboost_booster(model)
    classes = int(json.loads(booster.save_config())["learner"]["learner_model_param"]["num_class"])
    parallel, trees = _parallel_trees(booster), np.array(values["class_treeids"])
    values["class_ids"] = trees // parallel % classes
    if classes == 2 and "base_values" in values:
        base, weights = np.array(values.pop("base_values")), np.array(values["class_weights"])
        is_first = trees % (parallel * classes) % parallel + trees // (parallel * classes) == 0
        values["class_weights"] = np.where(is_first, weights + base[values["class_ids"]], weights)
    del node.attribute[:]
    made = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}
    node.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in made.items())
