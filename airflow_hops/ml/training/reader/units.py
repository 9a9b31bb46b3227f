"""Units of rows in which a split is read and decoded, and the ranks' shares of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from airflow_hops.core.errors import BadInput, InvalidArgument


@dataclass(frozen=True)
class Unit:
    """Rows that are decoded together: a row group of a Parquet file, or the records of a TFRecord file.

    Attributes:
        file: Number of the file.
        index: Number of the unit within the file.
        rows: Number of rows.
        size_bytes: Estimated memory of the decoded rows.
    """

    file: int
    index: int
    rows: int
    size_bytes: int


@dataclass(frozen=True)
class Piece:
    """Rows of a unit, from ``first`` up to, but not including, ``last``."""

    unit: Unit
    first: int
    last: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.last - self.first


@dataclass(frozen=True)
class RankShare:
    """A rank's rows of a split: contiguous, across files and units.

    Attributes:
        pieces: The pieces of units that hold the rows.
        rank: Number of the rank.
        by_rank: Number of rows of each rank.
    """

    pieces: tuple[Piece, ...]
    rank: int
    by_rank: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.by_rank[self.rank]

    @property
    def total_rows(self) -> int:
        """Rows of the split, over all ranks."""
        return sum(self.by_rank)

    @property
    def smallest_rows(self) -> int:
        """Rows of the smallest share."""
        return min(self.by_rank)

    @property
    def size_bytes(self) -> int:
        """Estimated memory of the decoded share."""
        return sum(piece.unit.size_bytes * piece.rows // piece.unit.rows for piece in self.pieces)

    def steps(self, batch_size: int) -> int:
        """Returns the number of steps of an epoch, the same on every rank, with ``batch_size`` rows over all ranks."""
        return max(1, min(-(-self.total_rows // batch_size), self.smallest_rows))

    def bounds(self, steps: int) -> np.ndarray:
        """Returns the boundaries of the batches: ``steps`` + 1 row numbers. Batches differ by at most one row."""
        return _bounds(self.rows, steps)

    def step_rows(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the number of rows of each step: of this rank, and over all ranks."""
        every = np.zeros(steps, np.int64)
        for rows in self.by_rank:
            every += np.diff(_bounds(rows, steps))
        return np.diff(self.bounds(steps)), every


def share(units: Sequence[Unit], rank: int, size: int, where: str, by_rank: Sequence[int] = ()) -> RankShare:
    """Divides the rows of a split into ``size`` contiguous shares, and returns that of a rank.

    Args:
        units: The units of the split.
        rank: Number of the rank.
        size: Number of ranks.
        where: Name of the split, for errors.
        by_rank: Rows of each rank; by default, shares differ by at most one row.

    Raises:
        BadInput: the split has fewer rows than ranks, or another number of rows than ``by_rank``.
    """
    if not 0 <= rank < size:
        raise InvalidArgument("rank", rank, f" of {size}; expected 0 to size - 1")
    total = sum(unit.rows for unit in units)
    if total < size:
        raise BadInput(f"{where} holds {total} rows, fewer than the {size} ranks; give it more rows, or lower np")
    by_rank = tuple(by_rank) or tuple(np.diff(_bounds(total, size)).tolist())
    if len(by_rank) != size or sum(by_rank) != total or min(by_rank) < 1:
        raise BadInput(f"{where} holds {total} rows for {size} ranks, but the shares have {by_rank}")
    begin = sum(by_rank[:rank])
    end = begin + by_rank[rank]
    pieces = []
    position = 0
    for unit in units:
        first, last = max(begin - position, 0), min(end - position, unit.rows)
        position += unit.rows
        if first < last:
            pieces.append(Piece(unit, first, last))
    return RankShare(tuple(pieces), rank, by_rank)


@dataclass(frozen=True)
class Rest:
    """The rest of a pass, of which other numbers of ranks have taken some steps.

    Attributes:
        epoch: Number of the pass.
        parts: Numbers of ranks, and the steps that each has taken, in order.
        by_rank: Rows of each rank of the first part; by default, shares differ by at most one row.
    """

    epoch: int
    parts: tuple[tuple[int, int], ...]
    by_rank: tuple[int, ...] = ()

    @property
    def steps(self) -> int:
        """Steps of the pass that were taken."""
        return sum(steps for _, steps in self.parts)

    def rows(self, steps: int, order: Callable[[int, int], np.ndarray]) -> np.ndarray:
        """Returns the rows that are left, by their numbers in the split, in the order in which ranks share them.

        Each rank of a part leaves what it has not taken of its share; the next ranks share the leftovers of all. The
        rest has as many steps as the whole pass has left.

        Args:
            steps: Steps of the whole pass.
            order: Returns the rows of a rank's share of the whole pass in order, from its number and the ranks.
        """
        left = np.empty(0, np.int64)
        for number, (ranks, taken) in enumerate(self.parts):
            shares = [own_rows(left, rank, ranks) if number else order(rank, ranks) for rank in range(ranks)]
            left = np.concatenate([rows[_bounds(len(rows), steps)[taken] :] for rows in shares])
            steps -= taken
        return left


def own_rows(rows: np.ndarray, rank: int, size: int) -> np.ndarray:
    """Returns a rank's equal, contiguous share of rows."""
    return rows[len(rows) * rank // size : len(rows) * (rank + 1) // size]


def _bounds(rows: int, steps: int) -> np.ndarray:
    return np.arange(steps + 1, dtype=np.int64) * rows // steps
