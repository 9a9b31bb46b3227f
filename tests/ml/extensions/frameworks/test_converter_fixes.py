"""Corrections of converted graphs, with stand-ins for the libraries that test_export_frameworks.py installs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import helper, numpy_helper
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.frameworks.ml.converter_fixes import (
    correct_spark,
    correct_unknown_categories,
    missing_directions,
    refuse_negative_indices,
    unknown_categories,
)
from tests.ml.extensions.frameworks.exported import PRICE, assert_answers, export

NUMBERS = np.random.default_rng(0).normal(size=(60, 4)).round(1).astype(np.float32)
TABLE = pd.DataFrame(NUMBERS, columns=["none", "zero", "nan", "category"])
LABELS = NUMBERS @ [1.0, 2.0, 3.0, 4.0]
VALUES = (np.nan, 0.0, 1e-36, -1.0, 2.5)
"""Values that libraries read as others, or as missing."""


class Tree(DecisionTreeRegressor):  # type: ignore[misc]
    """A tree that reads values as a library does."""

    def fit(self, rows: Any, labels: Any) -> Any:
        return super().fit(self.read(rows), labels)

    def predict(self, rows: Any) -> Any:
        return super().predict(self.read(rows))


class LGBMRegressor(Tree):
    """Features of each of LightGBM's missing types, and a category."""

    __module__ = "lightgbm.sklearn"
    KINDS = (("<=", "None"), ("<=", "Zero"), ("<=", "NaN"), ("==", "NaN"))
    best_iteration = -1

    @property
    def booster_(self) -> Any:
        return self

    def num_feature(self) -> int:
        return len(self.KINDS)

    def dump_model(self) -> Any:
        leaf = {"leaf_value": 1.0}
        splits = [{"decision_type": type, "missing_type": missing, "threshold": 0.1} for type, missing in self.KINDS]
        nodes = [
            {"split_feature": n, "left_child": leaf, "right_child": leaf, **split} for n, split in enumerate(splits)
        ]
        return {"tree_info": [{"tree_structure": node} for node in nodes]}

    def read(self, rows: Any) -> Any:
        none, zero, nan, category = np.asarray(rows, np.float32).T
        zero = np.where(np.abs(zero) <= 1e-35, np.nan, zero)
        return np.stack([np.nan_to_num(none), zero, nan, np.trunc(category)], axis=1)


class XGBRegressor(Tree):
    """A number that counts as missing, and names of its own."""

    __module__ = "xgboost.sklearn"
    missing, booster, feature_names = -1.0, "gbtree", list(TABLE)

    def get_booster(self) -> Any:
        return self

    def num_features(self) -> int:
        return len(TABLE.columns)

    def save_config(self) -> str:
        trees = {"name": self.booster, "gbtree_model_param": {"num_parallel_tree": "1"}}
        return json.dumps({"learner": {"gradient_booster": trees}})

    def num_boosted_rounds(self) -> int:
        return 1

    def read(self, rows: Any) -> Any:
        rows = np.asarray(rows, np.float32)
        return np.where(rows == -1, np.float32(np.nan), rows)


def plain(model: Any) -> DecisionTreeRegressor:
    """Returns the same tree as one of scikit-learn's, whose converter knows its options."""
    tree = DecisionTreeRegressor()
    tree.__dict__.update(model.__dict__)
    return tree


def convert(model: Any, initial_types: Any, **options: Any) -> Any:
    """Converts a tree as onnxmltools does, which knows neither other missing values nor names of features."""
    import skl2onnx

    assert np.isnan(getattr(model, "missing", np.nan))
    assert getattr(model, "feature_names", ["f0"])[0] == "f0"
    with missing_directions():
        return skl2onnx.convert_sklearn(
            plain(model), initial_types=initial_types, target_opset={"": 15, "ai.onnx.ml": 3}
        )


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both libraries and onnxmltools, as far as exports import them."""
    from skl2onnx.common import data_types
    from skl2onnx.operator_converters.decision_tree import convert_sklearn_decision_tree_regressor

    def convert_step(scope: Any, operator: Any, container: Any) -> None:
        operator.raw_operator = plain(operator.raw_operator)
        convert_sklearn_decision_tree_regressor(scope, operator, container)

    modules: Mapping[str, Mapping[str, Any]] = {
        "lightgbm": {"LGBMRegressor": LGBMRegressor, "LGBMClassifier": type("LGBMClassifier", (), {})},
        "xgboost": {"XGBRegressor": XGBRegressor, "XGBClassifier": type("XGBClassifier", (), {})},
        "onnxmltools": {"convert_lightgbm": convert, "convert_xgboost": convert},
        "onnxmltools.convert": {},
        "onnxmltools.convert.common": {},
        "onnxmltools.convert.common.data_types": vars(data_types),
    }
    for library, name in (("lightgbm", "LightGbm"), ("xgboost", "XGBoost")):
        holder = type(name, (), {f"convert_{library}": convert_step})
        modules |= {f"onnxmltools.convert.{library}.operator_converters": {name: holder}}
    for name, members in modules.items():
        module = ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize(("kind", "library"), [(LGBMRegressor, "lightgbm"), (XGBRegressor, "xgboost")])
def test_values_are_read_as_by_boosted_trees(libraries: None, kind: Any, library: str, tmp_path: Path) -> None:
    odd = [TABLE[:4].assign(**{name: np.float32(value)}) for name in TABLE for value in VALUES]
    scaler = StandardScaler().set_output(transform="pandas")
    for model, framework in ((kind(), library), (make_pipeline(scaler, kind()), "sklearn")):
        export(model.fit(TABLE, LABELS), tmp_path / framework, PRICE, TABLE, framework=framework)
        assert_answers(model, tmp_path / framework / "onnx", PRICE, pd.concat(odd))
        tree = model[-1] if framework == "sklearn" else model
        assert getattr(tree, "missing", -1) == -1 and getattr(tree, "feature_names", list(TABLE)) == list(TABLE)


def test_boosters_without_converter_are_refused(libraries: None, tmp_path: Path) -> None:
    for booster, advice in (("dart", "or dropout of LightGBM"), ("gblinear", "or a linear model of scikit-learn")):
        model = XGBRegressor().fit(TABLE, LABELS)
        model.booster = booster
        message = rf"has booster='{booster}', which does not convert to ONNX.* use booster='gbtree', {advice}"
        for each, framework in ((model, "xgboost"), (make_pipeline(model), "sklearn")):
            with pytest.raises(BadInput, match=message):
                export(each, tmp_path, PRICE, TABLE, framework=framework)


def run(
    nodes: Sequence[Any], inputs: Mapping[str, Any], *held: Any, correct: Any, kind: int = onnx.TensorProto.FLOAT
) -> Any:
    """Returns the output ``y``, of a type of ONNX, of a graph that a function corrects."""
    import onnxruntime

    graph_inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), None) for n, v in inputs.items()
    ]
    output = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph(nodes, "graph", graph_inputs, [output], held)
    correct(graph)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    content = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return onnxruntime.InferenceSession(content).run(["y"], dict(inputs))[0]


def test_spark_vectors_are_floats_and_classes_multinomial() -> None:
    weights = [1.0, -1.0, 0.5, 2.0, -1.0, 0.0]
    nodes = [
        helper.make_node("Concat", ["a", "b"], ["ab"], axis=1, name="assembled"),
        helper.make_node(
            "LinearClassifier", ["ab"], ["label", "y"], domain="ai.onnx.ml", coefficients=weights,
            intercepts=[0.0, 0.1, 0.2], classlabels_ints=[0, 1, 2], post_transform="LOGISTIC", multi_class=1,
        ),
    ]  # fmt: skip
    a, b = np.array([[1], [2]]), np.array([[0.5], [1.5]], np.float32)
    logits = np.hstack([a, b]) @ np.reshape(weights, (3, 2)).T + [0.0, 0.1, 0.2]
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert run(nodes, {"a": a, "b": b}, correct=correct_spark) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("handled", ["keep", "error"])
def test_unknown_category_of_spark_has_the_next_number_or_is_refused(handled: str) -> None:
    class StringIndexerModel:
        labelsArray = (("clay", "lime"),)

        def getHandleInvalid(self) -> str:
            return handled

    node = helper.make_node(
        "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_strings=["clay", "lime"], values_int64s=[0, 1],
        default_int64=-1,
    )  # fmt: skip

    def numbers(*texts: str) -> list[int]:
        categories = unknown_categories(StringIndexerModel())
        correct = lambda graph: correct_unknown_categories(graph, categories)  # noqa: E731
        return list(run([node], {"x": np.array(texts, object)}, correct=correct, kind=onnx.TensorProto.INT64))

    assert numbers("lime", "clay") == [1, 0]
    if handled == "keep":
        assert numbers("sand", "clay") == [2, 0]
    else:
        with pytest.raises(Exception, match="out of data bounds"):
            numbers("sand")


def test_negative_index_of_an_embedding_is_refused() -> None:
    table = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "model.table.weight")
    node = helper.make_node("Gather", [table.name, "x"], ["y"])

    def look_up(*rows: int) -> Any:
        correct = lambda graph: refuse_negative_indices(graph, ["table.weight"])  # noqa: E731
        return run([node], {"x": np.array(rows)}, table, correct=correct).tolist()

    assert look_up(2, 0) == [[4, 5], [0, 1]]
    for row in (-1, 3):
        with pytest.raises(Exception, match="out of data bounds"):
            look_up(row)
