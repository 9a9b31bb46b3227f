"""Exact Shapley values of tree ensembles, for groups of their columns (interventional TreeSHAP, by patterns of leaves).

A row reaches a leaf if it satisfies the conditions on the leaf's path. Conditions are grouped by raw feature. With a
coalition of features from the explained row x and the others from a background row z, the leaf is reached exactly if x
satisfies the conditions of each feature in the coalition, and z those of each other feature. So of a leaf only two bit
patterns matter, those of the features whose conditions x and z satisfy: a leaf for which x alone satisfies ``a``
features and z alone ``b``, with no feature unsatisfied by both, gives each of the former its value times
``(a-1)! b! / (a+b)!`` and takes from each of the latter its value times ``a! (b-1)! / (a+b)!`` (Lundberg et al., "From
local explanations to global understanding with explainable AI for trees", 2020). Rows with equal patterns share the
work.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import factorial
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

MAX_PATH_FEATURES = 40
"""Maximum number of raw features on the path to a leaf: the bits of a pattern beside the leaf's number."""
_BLOCK = 4000
"""Conditions of the leaves that are computed at once."""
_TESTS = {
    b"BRANCH_LEQ": operator.le, b"BRANCH_LT": operator.lt, b"BRANCH_GTE": operator.ge, b"BRANCH_GT": operator.gt,
    b"BRANCH_EQ": operator.eq, b"BRANCH_NEQ": operator.ne,
}  # fmt: skip


@dataclass(frozen=True)
class Trees:
    """An ensemble: the nodes that test columns, and the conditions on the path to each leaf.

    Attributes:
        columns: Column that each node tests, ``[nodes]``.
        modes: Kind of each test.
        thresholds: What it compares with.
        missing: Whether a missing value passes the test.
        values: Values of the leaves, ``[leaves, outputs]``.
        leaves: Leaf of each condition, ascending, ``[conditions]``.
        nodes: Its node.
        sides: Whether the test is to pass.
    """

    columns: Array
    modes: Array
    thresholds: Array
    missing: Array
    values: Array
    leaves: Array
    nodes: Array
    sides: Array

    @classmethod
    def of(cls, node: Any) -> Trees | None:
        """Reads a node ``TreeEnsembleRegressor`` or ``TreeEnsembleClassifier``; None if it is not one of trees."""
        import onnx

        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        attributes |= {
            name[:-10]: onnx.numpy_helper.to_array(attributes[name])
            for name in attributes
            if name.endswith("_as_tensor")
        }
        modes = np.array(attributes["nodes_modes"])
        ids = np.stack([attributes["nodes_treeids"], attributes["nodes_nodeids"]])
        number = {each: index for index, each in enumerate(zip(*ids.tolist(), strict=True))}
        parents, sides = np.full(len(modes), -1), np.zeros(len(modes), bool)
        branches = np.flatnonzero(modes != b"LEAF")
        for side, name in ((True, "nodes_truenodeids"), (False, "nodes_falsenodeids")):
            children = np.array(attributes[name])[branches]
            places = np.array([number[each] for each in zip(ids[0][branches], children, strict=True)], int)
            if (parents[places] >= 0).any() or len(np.unique(places)) < len(places):
                return None
            parents[places], sides[places] = branches, side
        of_leaf = np.cumsum(modes == b"LEAF") - 1
        kind = "class" if "class_ids" in attributes else "target"
        outputs = np.array(attributes[f"{kind}_ids"], int)
        values = np.zeros((of_leaf[-1] + 1, outputs.max() + 1))
        weighted = [
            number[each] for each in zip(attributes[f"{kind}_treeids"], attributes[f"{kind}_nodeids"], strict=True)
        ]
        np.add.at(values, (of_leaf[weighted], outputs), np.array(attributes[f"{kind}_weights"], float))
        below = np.flatnonzero(modes == b"LEAF")
        leaves, conditions = np.arange(len(below)), []
        while len(below):
            inner = parents[below] >= 0
            below, leaves = below[inner], leaves[inner]
            conditions.append((leaves, parents[below], sides[below]))
            below = parents[below]
        joined = [np.concatenate(each) for each in zip(*conditions, strict=True)]
        order = np.argsort(joined[0], kind="stable")
        missing = np.array(attributes.get("nodes_missing_value_tracks_true") or np.zeros(len(modes)), bool)
        columns, thresholds = np.array(attributes["nodes_featureids"]), np.array(attributes["nodes_values"])
        return cls(columns, modes, thresholds, missing, values, *(each[order] for each in joined))

    def tests(self, matrix: Array, nodes: Array) -> Array:
        """Returns which rows of a matrix ``[rows, columns]`` pass the tests of some nodes, ``[nodes, rows]``."""
        values = matrix.T[self.columns[nodes]]
        thresholds = self.thresholds[nodes].astype(matrix.dtype)[:, None]
        passed = np.isnan(values) & self.missing[nodes][:, None]
        for mode in np.unique(self.modes[nodes]):
            chosen = self.modes[nodes] == mode
            passed[chosen] |= _TESTS[mode](values[chosen], thresholds[chosen])
        return passed


@dataclass(frozen=True)
class _Block:
    """Some leaves of an ensemble; the bits of a leaf's patterns are the features on its path.

    Attributes:
        values: Values of the leaves, ``[leaves, outputs]``.
        nodes: Nodes that test columns.
        tests: Number among them for each condition, sorted by leaf.
        sides: Whether the test is to pass.
        bits: Bit of the condition's feature.
        starts: First condition of each leaf.
        features: Feature of each bit, ``[leaves, bits]``; the number of features where a leaf has fewer.
        full: Pattern with all features of a leaf.
    """

    trees: Trees
    values: Array
    nodes: Array
    tests: Array
    sides: Array
    bits: Array
    starts: Array
    features: Array
    full: Array

    @classmethod
    def of(cls, trees: Trees, owners: Array, features: int, first: int, last: int) -> _Block:
        """Returns the conditions from ``first`` to before ``last``, of whole leaves."""
        of_leaf = trees.leaves[first:last]
        pairs, of_pair = np.unique(
            np.stack([of_leaf, owners[trees.columns[trees.nodes[first:last]]]]), axis=1, return_inverse=True
        )
        own, first_pair, counts = np.unique(pairs[0], return_index=True, return_counts=True)
        position = np.arange(pairs.shape[1]) - np.repeat(first_pair, counts)
        table = np.full((len(own), counts.max()), features)
        table[np.repeat(np.arange(len(own)), counts), position] = pairs[1]
        nodes, tests = np.unique(trees.nodes[first:last], return_inverse=True)
        bits = (1 << position[of_pair.ravel()]).astype(np.int16 if table.shape[1] < 15 else np.int64)
        starts, full = np.searchsorted(of_leaf, own), (1 << counts) - 1
        return cls(
            trees, trees.values[own], nodes, tests, trees.sides[first:last, None], bits[:, None], starts, table, full
        )

    def patterns(self, matrix: Array) -> Array:
        """Returns the features whose conditions rows satisfy, as bits, ``[leaves, rows]``."""
        broken = (self.trees.tests(matrix, self.nodes)[self.tests] != self.sides) * self.bits
        patterns: Array = self.full[:, None] & ~np.bitwise_or.reduceat(broken, self.starts, axis=0)
        return patterns


class TreeValues:
    """Shapley values of an ensemble's outputs against a background.

    Args:
        trees: The ensemble.
        owners: Feature that each column of its matrix belongs to, ``[columns]``.
        features: Number of features.
        background: Matrix of the background, ``[background_rows, columns]``.

    Raises:
        ValueError: more than 40 features are on the path to a leaf.
    """

    def __init__(self, trees: Trees, owners: Array, features: int, background: Array) -> None:
        self.features, self._stumps = features, np.ones(len(trees.values), bool)
        self._stumps[trees.leaves] = False  # trees without a test
        self._constant = trees.values[self._stumps].sum(axis=0)
        starts = np.flatnonzero(np.diff(trees.leaves, prepend=-1))
        cuts = [0, *(int(cut) for cut in starts[np.flatnonzero(np.diff(starts // _BLOCK)) + 1]), len(trees.leaves)]
        self._blocks = [_Block.of(trees, owners, features, *ends) for ends in pairwise(cuts) if ends[0] < ends[1]]
        if any(block.features.shape[1] > MAX_PATH_FEATURES for block in self._blocks):
            raise ValueError(f"more than {MAX_PATH_FEATURES} features are on the path to a leaf")
        self._of_background = [_counted(block.patterns(background)) for block in self._blocks]
        self.base = self.outputs(background).mean(axis=0)

    def outputs(self, matrix: Array) -> Array:
        """Returns the sums of the leaves that rows reach, ``[rows, outputs]``."""
        reached = ((block.patterns(matrix) == block.full[:, None], block.values) for block in self._blocks)
        return sum((is_there.T @ values for is_there, values in reached), np.tile(self._constant, (len(matrix), 1)))

    def contributions(self, matrix: Array, outputs: Array) -> Array:
        """Returns the contributions of features to one output of each row, ``[rows, features]``."""
        total = np.zeros(len(matrix) * (self.features + 1))
        for block, background in zip(self._blocks, self._of_background, strict=True):
            patterns = block.patterns(matrix)
            codes, inverse = np.unique(_codes(patterns), return_inverse=True)
            weights, places = _weights(codes, background, block), inverse.reshape(patterns.shape)
            leaves, rows = np.nonzero((weights != 0).any(axis=1)[places])
            place, values = places[leaves, rows], block.values[leaves, outputs[rows]]
            for bit in range(weights.shape[1]):
                sums = rows * (self.features + 1) + block.features[leaves, bit]
                total += np.bincount(sums, weights[place, bit] * values, len(total))
        return total.reshape(len(matrix), -1)[:, :-1]


def _codes(patterns: Array) -> Array:
    """Returns patterns ``[leaves, rows]`` with the leaf's number above their bits."""
    codes: Array = patterns | (np.arange(len(patterns)) << MAX_PATH_FEATURES)[:, None]
    return codes


def _counted(patterns: Array) -> tuple[Array, Array, Array]:
    """Returns the different patterns, where those of each leaf begin, with the end, and their shares of the rows."""
    codes, counts = np.unique(_codes(patterns), return_counts=True)
    starts = np.searchsorted(codes, np.arange(len(patterns) + 1) << MAX_PATH_FEATURES)
    return codes & ((1 << MAX_PATH_FEATURES) - 1), starts, counts / patterns.shape[1]


def _weights(codes: Array, background: tuple[Array, Array, Array], block: _Block) -> Array:
    """Returns the share of a leaf's value that each of its features contributes, ``[codes, bits]``."""
    others, starts, shares = background
    leaves, mine = codes >> MAX_PATH_FEATURES, codes & ((1 << MAX_PATH_FEATURES) - 1)
    counts = starts[leaves + 1] - starts[leaves]
    leaf_of = np.repeat(np.arange(len(codes)), counts)
    positions = np.arange(len(leaf_of)) + np.repeat(starts[leaves] - np.cumsum(counts) + counts, counts)
    full = block.full[leaves]
    alive = (mine[leaf_of] | others[positions]) == full[leaf_of]
    leaf_of, positions = leaf_of[alive], positions[alive]
    width = block.features.shape[1]
    bits = np.arange(width)
    alone = (full[leaf_of] & ~others[positions])[:, None] >> bits & 1  # satisfied by the explained row alone
    lacking = (full & ~mine)[:, None] >> bits & 1
    a, b = alone.sum(axis=1), lacking.sum(axis=1)[leaf_of]
    gain, loss = (table[a, b] * shares[positions] for table in _factors(width))
    lost = np.bincount(leaf_of, loss, len(codes))
    return np.stack(
        [np.bincount(leaf_of, gain * alone[:, bit], len(codes)) - lost * lacking[:, bit] for bit in range(width)],
        axis=1,
    )


@cache
def _factors(most: int) -> tuple[Array, Array]:
    """Returns the shares of a feature of the explained row, and of one of the background, by ``a`` and ``b``."""
    size = most + 1
    gain, loss = np.zeros((size, size)), np.zeros((size, size))
    for a in range(size):
        for b in range(size - a):
            if a:
                gain[a, b] = factorial(a - 1) * factorial(b) / factorial(a + b)
            if b:
                loss[a, b] = factorial(a) * factorial(b - 1) / factorial(a + b)
    return gain, loss
