"""Tree ensembles within served graphs: the columns that they take, and the raw feature that each column is made of."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from airflow_hops.extensions.explain.ml.trees import Array, Trees, TreeValues
from airflow_hops.ml.features.transform_graph import SIGNATURE
from airflow_hops.ml.metrics.scoring import BATCH_ROWS, ScoredModel
from airflow_hops.ml.models.loaded_models import LoadedModel
from airflow_hops.serving.models.formats import format_of
from airflow_hops.serving.models.model_signature import SIGNATURE_FILE, read_signature

_COLUMNS = "explained_columns"
_OBSERVED_ROWS = 256
"""Least number of rows in which features are exchanged."""
_TOLERANCE = 1e-5
"""Share of the largest prediction by which a graph's float32 sums may differ from exact ones."""


class NotTrees(Exception):
    """Why a model's predictions are not explained by trees; empty if it has none."""


class TreeModel:
    """A served ONNX model whose predictions are sums over the trees of one node, or probabilities of such sums.

    Which raw feature a column of the trees' matrix is made of is observed: one feature at a time takes another row's
    values, in each row of the background and in each explained row. In the other row, each feature has any of its
    values, whatever the others have: a product of rare flags is 0 in nearly all real rows, but not in these. A column
    that changes with several features, as of a principal component, has no exact values in polynomial time.

    Args:
        model: The model.
        scratch: Folder for a copy of the model that answers with the matrix too.
        background: Raw features of the background.
        predictions: The model's predictions for them, ``[background_rows, outputs]``.
        log_odds: Whether probabilities that are a logistic or softmax function of the trees' sum are explained by that
            sum; of several classes, by its difference to the mean of all classes' sums.

    Raises:
        NotTrees: the predictions are not of this form.
    """

    def __init__(
        self,
        model: ScoredModel,
        scratch: Path,
        background: Mapping[str, Array],
        predictions: Array,
        log_odds: bool,
        count: Callable[[int], None] = lambda rows: None,
    ) -> None:
        self._count, self.log_odds = count, log_odds
        self._model, self._trees = _observed(model.path, scratch)
        if log_odds and predictions.shape[1] > 1:  # a number that is added to all classes changes no probability
            values = self._trees.values
            self._trees = replace(self._trees, values=values - values.mean(axis=1, keepdims=True))
        self._background, self._names = background, tuple(background)
        self._matrix = self._columns(background)
        self._made_of = np.zeros((len(self._names), self._matrix.shape[1]), bool)
        self._observe(background, self._matrix)
        self._values = self._valued(self._matrix)
        sums = self._values.outputs(self._matrix)
        if (several := predictions.shape[1] > 1) and predictions.shape[1] != sums.shape[1]:
            raise NotTrees(f"the trees have {sums.shape[1]} outputs for {predictions.shape[1]} classes")
        self._output = np.arange(predictions.shape[1]) if several else np.array([sums.shape[1] - 1])
        self._scale, self._shift = _fitted(sums[:, self._output], predictions, log_odds)
        self._check(sums, predictions)

    def explain(self, rows: Mapping[str, Array], predictions: Array, outputs: Array) -> tuple[Array, Array, Array]:
        """Returns contributions ``[rows, features]`` to an output of each row, its prediction and its base ``[rows]``.

        Raises:
            NotTrees: a column changes with several features, or the trees predict otherwise than the model.
        """
        matrix = self._columns(rows)
        counts = self._made_of.copy()
        self._observe(rows, matrix)
        if (counts != self._made_of).any():
            self._values = self._valued(matrix)
        sums = self._values.outputs(matrix)
        self._check(sums, predictions)
        scale, shift, output = self._scale[outputs], self._shift[outputs], self._output[outputs]
        contributions = self._values.contributions(matrix, output) * scale[:, None]
        return (
            contributions,
            sums[np.arange(len(output)), output] * scale + shift,
            self._values.base[output] * scale + shift,
        )

    def _columns(self, arrays: Mapping[str, Array]) -> Array:
        """Returns the matrix that the trees take, ``[rows, columns]``."""
        shapes = {name: spec.shape for name, spec in self._model.inputs.items()}
        arranged = {name: arrays[name].reshape(-1, *(shape or ())[1:]) for name, shape in shapes.items()}
        rows = len(next(iter(arrays.values())))
        self._count(rows)
        parts = [
            self._model.run({name: values[start : start + BATCH_ROWS] for name, values in arranged.items()})[_COLUMNS]
            for start in range(0, rows, BATCH_ROWS)
        ]
        return np.concatenate(parts)

    def _observe(self, rows: Mapping[str, Array], matrix: Array) -> None:
        """Exchanges one feature at a time between rows and others, both ways; raises NotTrees as ``explain`` does."""
        repeated = np.arange(max(len(matrix), _OBSERVED_ROWS)) % len(matrix)
        one, of_one = {name: values[repeated] for name, values in rows.items()}, matrix[repeated]
        other = _independent({name: np.concatenate([self._background[name], rows[name]]) for name in rows}, len(of_one))
        of_other = self._columns(other)
        for number, name in enumerate(self._names):
            for pair, source, target, moved in ((one, other, of_one, of_other), (other, one, of_other, of_one)):
                exchanged = self._columns({**pair, name: source[name]})
                changed = _differ(exchanged, target)
                self._made_of[number] |= changed.any(axis=0)
                if (self._made_of.sum(axis=0) > 1).any() or (changed & _differ(exchanged, moved)).any():
                    raise NotTrees("a column of the trees is made of several raw features")

    def _valued(self, matrix: Array) -> TreeValues:
        seen = np.concatenate([self._matrix, matrix])
        if (_differ(seen, seen[:1]).any(axis=0) & ~self._made_of.any(axis=0)).any():
            raise NotTrees("of a column of the trees, it was not seen which raw feature it is made of")
        try:
            return TreeValues(self._trees, self._made_of.argmax(axis=0), len(self._names), self._matrix)
        except ValueError as error:
            raise NotTrees(str(error)) from error

    def _check(self, sums: Array, predictions: Array) -> None:
        predicted = sums[:, self._output] * self._scale + self._shift
        if self.log_odds:
            predicted = _softmax(predicted) if predicted.shape[1] > 1 else 1 / (1 + np.exp(-predicted))
        if not np.allclose(predicted, predictions, 0, _TOLERANCE * max(1e-3, np.abs(predictions).max())):
            kind = "the logistic or softmax function of a sum" if self.log_odds else "a sum"
            raise NotTrees(f"the predictions are not {kind} over the trees")


def _independent(values: Mapping[str, Array], rows: int) -> dict[str, Array]:
    """Returns rows of independent features: half of the values are the least or greatest, the others any, as likely."""
    random, result = np.random.default_rng(0), {}
    for name, column in values.items():
        different = np.unique(column, axis=0 if column.ndim > 1 else None)
        any_of, end = random.integers(0, len(different), rows), random.integers(0, 2, rows) * (len(different) - 1)
        result[name] = different[np.where(random.random(rows) < 0.5, end, any_of)]
    return result


def _observed(folder: Path, scratch: Path) -> tuple[LoadedModel, Trees]:
    """Returns a copy of an ONNX model that also answers with the matrix of its trees, and these."""
    kind = format_of(folder)
    if kind is None or kind.name != "ONNX":
        raise NotTrees
    import onnx

    model = onnx.load(folder / kind.files[0])
    nodes = [node for node in model.graph.node if node.op_type in ("TreeEnsembleRegressor", "TreeEnsembleClassifier")]
    if len(nodes) != 1:
        raise NotTrees(f"the graph has {len(nodes)} ensembles" if nodes else "")
    trees = Trees.of(nodes[0])
    if trees is None:
        raise NotTrees("nodes of the trees have several parents")
    copy = scratch / "observed_trees"
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    if (copy / SIGNATURE_FILE).is_file():
        signature = read_signature(folder)
        floats = [each.name for each in model.graph.output if each.type.tensor_type.elem_type in (1, 11)]
        output = signature.output or (floats[0] if len(floats) == 1 else None)
        passed = {**signature.passed, _COLUMNS: _COLUMNS}
        (copy / SIGNATURE_FILE).write_text(replace(signature, output=output, passed=passed).to_json())
    model.graph.node.append(onnx.helper.make_node("Identity", [nodes[0].input[0]], [_COLUMNS]))
    model.graph.output.append(onnx.ValueInfoProto(name=_COLUMNS))
    onnx.save(model, copy / kind.files[0])
    return LoadedModel(copy, SIGNATURE), trees


def _fitted(sums: Array, predictions: Array, log_odds: bool) -> tuple[Array, Array]:
    """Returns factors and summands that make sums of trees predictions, or their log-odds; ``[outputs]`` each.

    An ensemble's mean, initial value and learning rate are nodes behind the trees in some graphs, and in the trees in
    others.
    """
    count = predictions.shape[1]
    scale, shift = np.ones(count), np.zeros(count)
    if log_odds and count > 1:
        inner = (predictions > 1e-6).all(axis=1)
        wanted, mine = np.log(predictions[inner]), sums[inner]
        wanted -= wanted.mean(axis=1, keepdims=True)
        if len(mine):
            spread = mine - mine.mean(axis=0)
            factor = (spread * wanted).sum() / (spread * spread).sum() if spread.any() else 1.0
            scale *= 1.0 if abs(factor - 1) < 1e-4 else factor
            shift = wanted.mean(axis=0) - scale * mine.mean(axis=0)
        return scale, shift
    for number in range(count):
        wanted, mine = predictions[:, number], sums[:, number]
        if log_odds:
            inner = (wanted > 1e-4) & (wanted < 1 - 1e-4)
            wanted, mine = np.log(wanted[inner] / (1 - wanted[inner])), mine[inner]
        if len(mine) and not np.allclose(mine, wanted, 0, _TOLERANCE * max(1e-3, np.abs(wanted).max())):
            spread = mine - mine.mean()
            scale[number] = (spread @ wanted) / (spread @ spread) if spread.any() else 1.0
            shift[number] = wanted.mean() - scale[number] * mine.mean()
    return scale, shift


def _softmax(values: Array) -> Array:
    powers: Array = np.exp(values - values.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


def _differ(one: Array, other: Array) -> Array:
    return np.not_equal(one, other) & ~(np.isnan(one) & np.isnan(other))
