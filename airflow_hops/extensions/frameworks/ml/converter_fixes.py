"""Corrections of converters whose graph computes differently from the model."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_hops.extensions.frameworks.ml.booster_fixes import round_down

if TYPE_CHECKING:
    import onnx
    from skl2onnx.common._container import ModelComponentContainer
    from skl2onnx.common._topology import Operator, Scope

Array = np.ndarray

_MEMBERS = (
    "estimators_", "final_estimator_", "best_estimator_", "calibrated_classifiers_", "estimator", "estimator_",
    "regressor_",
)  # fmt: skip
_OPSET = 15
_WORD = r"[\p{L}\p{N}_]"
_TOKENS = {
    r"(?u)\b\w\w+\b": _WORD + "{2,}",
    r"\b\w\w+\b": _WORD + "{2,}",
    r"(?u)\b\w+\b": _WORD + "+",
    r"\b\w+\b": _WORD + "+",
    r"\w+": _WORD + "+",
}
r"""Patterns of vectorizers in RE2's syntax, whose ``\w`` and ``\b`` only know ASCII."""


def steps_of(model: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the steps of a Pipeline or ColumnTransformer at any depth, with their paths; or the model itself."""
    inner = getattr(model, "steps", None) or getattr(model, "transformers_", None) or ()
    for name, step, *_ in inner:
        if not isinstance(step, str):
            yield from steps_of(step, f"{path}.{name}" if path else name)
    if not inner:
        yield path, model


def models_within(model: object) -> Iterator[Any]:
    """Yields a model and its inner models at any depth: steps of pipelines, members of ensembles."""
    if isinstance(model, list | tuple | np.ndarray):
        for each in model:
            yield from models_within(each)
    else:
        for _, step in steps_of(model):
            yield step
            for members in _MEMBERS:
                yield from models_within(getattr(step, members, ()))


def round_thresholds(model: object) -> None:
    """Rounds thresholds of scikit-learn's trees down to float32; since inputs are float32, no row changes sides.

    The converter takes the nearest float32, which may be a row's own value, above the threshold.
    """
    result = [model.tree_.threshold] if hasattr(model, "tree_") else []
    result += [tree.nodes["num_threshold"] for trees in getattr(model, "_predictors", ()) for tree in trees]
    for thresholds in result:
        thresholds[:] = round_down(thresholds)


def scale_in_double(scope: Scope, operator: Operator, container: ModelComponentContainer) -> None:
    """Converts a scaler of scikit-learn to compute in float64, if not all of its features are float32.

    skl2onnx rounds means and scales to float32: a whole number halfway between two others then passes a tree's
    threshold.
    """
    types = importlib.import_module("onnx").TensorProto
    features = importlib.import_module("skl2onnx.operator_converters.common").concatenate_variables
    step, last = operator.raw_operator, features(scope, operator.inputs, container)

    def add(kind: str, *inputs: str, **attributes: object) -> str:
        output: str = scope.get_unique_variable_name(kind.lower())
        name = scope.get_unique_operator_name(kind)
        container.add_node(kind, [last, *inputs], [output], op_version=_OPSET, name=name, **attributes)
        return output

    last = add("Cast", to=types.DOUBLE)
    offset = getattr(step, "mean_", None) if getattr(step, "with_mean", True) else None
    offset = getattr(step, "center_", None) if offset is None else offset
    for kind, values in (("Sub", offset), ("Div", step.scale_)):
        if values is not None:
            name = scope.get_unique_variable_name(f"{kind.lower()}_by")
            container.add_initializer(name, types.DOUBLE, [len(values)], values)
            last = add(kind, name)
    last = add("Cast", to=types.FLOAT)
    container.add_node("Identity", [last], operator.output_full_names, op_version=_OPSET)


def _has_texts(operator: Operator) -> bool:
    return any(type(each.type).__name__ == "StringTensorType" for each in operator.inputs)


def imputed_shape(operator: Operator) -> None:
    """Sets the type of what :func:`impute` returns: floats, also of whole columns and beside them."""
    if _has_texts(operator):
        importlib.import_module("skl2onnx.shape_calculators.imputer").calculate_sklearn_imputer_output_shapes(operator)
        return
    floats = importlib.import_module("skl2onnx.common.data_types").FloatTensorType
    rows = operator.inputs[0].get_first_dimension()
    operator.outputs[0].type = floats([rows, len(operator.raw_operator.statistics_)])


def impute(scope: Scope, operator: Operator, container: ModelComponentContainer) -> None:
    """Converts a SimpleImputer to compute in float32; skl2onnx refuses whole columns beside others, and their mean."""
    step = operator.raw_operator
    if _has_texts(operator):
        importlib.import_module("skl2onnx.operator_converters.imputer_op").convert_sklearn_imputer(
            scope, operator, container
        )
        return
    statistics = np.asarray(step.statistics_, np.float64)
    if np.isnan(statistics).any():
        raise NotImplementedError("a column without any value is not converted")
    types = importlib.import_module("onnx").TensorProto
    features = importlib.import_module("skl2onnx.operator_converters.common").concatenate_variables

    def add(kind: str, *inputs: str, **attributes: object) -> str:
        output: str = scope.get_unique_variable_name(kind.lower())
        name = scope.get_unique_operator_name(kind)
        container.add_node(kind, list(inputs), [output], op_version=_OPSET, name=name, **attributes)
        return output

    def constant(values: Any) -> str:
        name: str = scope.get_unique_variable_name("imputed")
        container.add_initializer(name, types.FLOAT, [len(values)], values)
        return name

    numbers = add("Cast", features(scope, operator.inputs, container), to=types.FLOAT)
    is_nan = step.missing_values is None or step.missing_values != step.missing_values
    missing = add("IsNaN", numbers) if is_nan else add("Equal", numbers, constant([float(step.missing_values)]))
    result = add("Where", missing, constant(statistics), numbers)
    container.add_node("Identity", [result], operator.output_full_names, op_version=_OPSET)


@contextlib.contextmanager
def missing_directions() -> Iterator[None]:
    """Sends missing values to the same side as scikit-learn's trees; skl2onnx sends them all to the right."""
    trees = importlib.import_module("skl2onnx.common.tree_ensemble")
    name = "add_tree_to_attribute_pairs"
    add_tree = getattr(trees, name)

    def with_directions(attributes: Any, is_classifier: bool, tree: Any, *args: object, **options: object) -> None:
        add_tree(attributes, is_classifier, tree, *args, **options)
        goes_left = (tree.missing_go_to_left != 0) & (tree.children_left >= 0)
        attributes["nodes_missing_value_tracks_true"][-tree.node_count :] = goes_left.astype(int).tolist()

    users = [module for module in list(sys.modules.values()) if getattr(module, name, None) is add_tree]
    try:
        for module in users:
            setattr(module, name, with_directions)
        yield
    finally:
        for module in users:
            setattr(module, name, add_tree)


def text_options(model: object) -> dict[int, dict[str, str]]:
    """Returns options of skl2onnx, by id, for the vectorizers within a model: words of any alphabet."""
    return {
        id(step): {"tokenexp": _TOKENS[step.token_pattern]}
        for step in models_within(model)
        if hasattr(step, "vocabulary_") and getattr(step, "analyzer", "") == "word" and step.token_pattern in _TOKENS
    }


def correct_texts(graph: onnx.GraphProto) -> None:
    """Sets a locale for lower-casing strings that every Linux has, and that knows all alphabets."""
    for node in graph.node:
        if node.op_type == "StringNormalizer" and not any(each.name == "locale" for each in node.attribute):
            node.attribute.append(importlib.import_module("onnx").helper.make_attribute("locale", "C.UTF-8"))


def unknown_categories(model: object) -> Iterator[tuple[Sequence[Any], bool]]:
    """Yields categories of encoders within a model whose unknown categories converters get wrong.

    The second value is whether the encoder refuses others; otherwise it gives them the next number.
    """
    for step in getattr(model, "stages", None) or models_within(model):
        if type(step).__name__ == "OrdinalEncoder" and step.handle_unknown == "error":
            yield from ((values, True) for values in step.categories_)
        elif type(step).__name__ == "StringIndexerModel":
            yield from ((values, step.getHandleInvalid() != "keep") for values in step.labelsArray)


def correct_unknown_categories(graph: onnx.GraphProto, categories: Iterable[tuple[Sequence[object], bool]]) -> None:
    """Makes a graph treat unknown categories (:func:`unknown_categories`) like the model; converters number them -1."""
    onnx = importlib.import_module("onnx")
    known = {_keys(values): is_refused for values, is_refused in categories}
    for number, node in enumerate(list(graph.node)):
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        keys = _keys(next((values for name, values in attributes.items() if name.startswith("keys_")), ()))
        is_default = attributes.get("default_int64", -1) < 0
        if node.op_type != "LabelEncoder" or keys not in known or "values_int64s" not in attributes or not is_default:
            continue
        codes = np.arange(max(attributes["values_int64s"]) + 1)
        others = [each for each in node.attribute if each.name != "default_int64"]
        del node.attribute[:]
        node.attribute.extend([*others, onnx.helper.make_attribute("default_int64", len(codes))])
        if known[keys]:
            output, node.output[0] = node.output[0], f"{node.output[0]}/any"
            table = f"{node.output[0]}/codes"
            graph.initializer.append(onnx.numpy_helper.from_array(codes, table))
            # Refuses an index beyond the last.
            name = f"unknown category {number}"
            refusing = onnx.helper.make_node("Gather", [table, node.output[0]], [output], name=name)
            graph.node.insert(list(graph.node).index(node) + 1, refusing)


def refuse_negative_indices(graph: onnx.GraphProto, tables: Iterable[str]) -> None:
    """Makes a graph refuse negative indices of embeddings like PyTorch; ONNX takes the last row for -1.

    ``tables`` are the ends of the names of the embeddings' weights.
    """
    onnx = importlib.import_module("onnx")
    ends = tuple(tables)
    for number, node in enumerate(list(graph.node)):
        if node.op_type != "Gather" or not ends or not node.input[0].endswith(ends):
            continue
        zero, beyond, negative, index = (f"index {number}/{part}" for part in ("zero", "beyond", "negative", "from 0"))
        for name, value in ((zero, 0), (beyond, np.iinfo(np.int64).max)):
            graph.initializer.append(onnx.numpy_helper.from_array(np.array(value, np.int64), name))
        place = list(graph.node).index(node)
        graph.node.insert(place, onnx.helper.make_node("Where", [negative, beyond, node.input[1]], [index]))
        graph.node.insert(place, onnx.helper.make_node("Less", [node.input[1], zero], [negative]))
        node.input[1] = index


def _keys(values: Sequence[object]) -> tuple[str, ...]:
    def text(value: object) -> str:
        return (
            value.decode()
            if isinstance(value, bytes)
            else str(np.float32(value) if isinstance(value, float) else value)
        )

    return tuple(map(text, np.asarray(values, object).tolist()))


def name_apart(model: object, names: Sequence[str]) -> Any:
    """Returns a graph whose inputs have the columns' names, and whose other names cannot be those of columns.

    A converter only keeps letters, digits and ``_`` of its inputs' names, and calls results ``label`` or ``variable``.
    """
    onnx = importlib.import_module("onnx")
    renamed = onnx.compose.add_prefix(model, prefix_apart(names), rename_functions=False)
    columns: Mapping[str, str] = dict(zip([each.name for each in renamed.graph.input], names, strict=True))
    for node in renamed.graph.node:
        node.input[:] = [columns.get(name, name) for name in node.input]
    for values in renamed.graph.input:
        values.name = columns[values.name]
    return renamed


def prefix_apart(names: Iterable[str]) -> str:
    """Returns a prefix that no name has."""
    prefix = "/"
    while any(name.startswith(prefix) for name in names):
        prefix += "/"
    return prefix


def correct_spark(graph: onnx.GraphProto) -> None:
    """Corrects a graph where the converter's computes differently from Spark.

    Vectors are assembled from floats: the converter does not cast integers and counts of words. A logistic
    regression of more than two classes is multinomial: the converter writes a one-versus-rest model.
    """
    onnx = importlib.import_module("onnx")
    nodes = []
    for node in graph.node:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "Concat" and attributes["axis"].i == 1:
            for number, column in enumerate(node.input):
                node.input[number] = f"{node.name}/{number}"
                nodes.append(onnx.helper.make_node("Cast", [column], [node.input[number]], to=onnx.TensorProto.FLOAT))
        if node.op_type == "LinearClassifier" and len(attributes["classlabels_ints"].ints) > 2:
            attributes["post_transform"].s = b"SOFTMAX"
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
