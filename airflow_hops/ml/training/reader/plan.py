"""The order of a pass over a share: the rows of each window, and how they are shuffled within it."""

from __future__ import annotations

from typing import Any

import numpy as np

from airflow_hops.ml.training.reader.units import Piece, Share


class PassPlan:
    """The windows of a pass, each of whole batches. Their contents depend only on seed, rank and epoch.

    A share in memory is shuffled as a whole. Otherwise its pieces (row groups) are shuffled, and then the rows of each
    window, which consists of several pieces.

    Args:
        share: The rank's rows.
        rank: The rank.
        steps: Batches of a pass.
        seed: Seed of the order; None for the order of the files.
        window_rows: Approximate number of rows of a window.
    """

    def __init__(self, share: Share, rank: int, steps: int, seed: int | None, window_rows: int) -> None:
        self.steps = steps
        self.bounds = share.bounds(steps)
        self.steps_per_window = max(1, min(steps, window_rows * steps // share.rows))
        self.windows = -(-steps // self.steps_per_window)
        self._share, self._rank, self._seed = share, rank, seed
        self._known_pieces: tuple[int, list[Piece], np.ndarray[Any, Any]] | None = None
        self._known_rows: tuple[int, np.ndarray[Any, Any]] | None = None

    def rows(self, window: int) -> tuple[int, int]:
        """Where a window begins and ends, in rows of the pass."""
        last = min((window + 1) * self.steps_per_window, self.steps)
        return int(self.bounds[window * self.steps_per_window]), int(self.bounds[last])

    def batch(self, step: int) -> tuple[int, int, int]:
        """The window that a batch is in, and where in it the batch begins and ends."""
        window = step // self.steps_per_window
        base = int(self.bounds[window * self.steps_per_window])
        return window, int(self.bounds[step]) - base, int(self.bounds[step + 1]) - base

    def rows_in_memory(self, epoch: int, window: int) -> np.ndarray[Any, Any] | slice:
        """The rows of a window, of a share that is shuffled whole."""
        low, high = self.rows(window)
        if self._seed is None:
            return slice(low, high)
        known = self._known_rows
        if known is None or known[0] != epoch:
            self._known_rows = known = (epoch, self._random(epoch, 0).permutation(self._share.rows))
        return known[1][low:high]

    def pieces(self, epoch: int, window: int) -> list[Piece]:
        """The pieces whose rows are in a window, cut to it."""
        pieces, starts = self._of_epoch(epoch)
        low, high = self.rows(window)
        taken = []
        for number in range(int(np.searchsorted(starts, low, side="right")) - 1, len(pieces)):
            piece, start = pieces[number], int(starts[number])
            if start >= high:
                break
            first, last = max(low - start, 0), min(high - start, piece.rows)
            taken.append(Piece(piece.unit, piece.first + first, piece.first + last))
        return taken

    def rows_of_pieces(self, epoch: int, window: int) -> np.ndarray[Any, Any] | slice:
        """The order in which the rows of a window's pieces come."""
        low, high = self.rows(window)
        if self._seed is None:
            return slice(0, high - low)
        order: np.ndarray[Any, Any] = self._random(epoch, window + 1).permutation(high - low)
        return order

    def _of_epoch(self, epoch: int) -> tuple[list[Piece], np.ndarray[Any, Any]]:
        known = self._known_pieces
        if known is None or known[0] != epoch:
            pieces = list(self._share.pieces)
            if self._seed is not None:
                pieces = [pieces[number] for number in self._random(epoch, 0).permutation(len(pieces))]
            starts = np.cumsum([0, *(piece.rows for piece in pieces)])[:-1]
            self._known_pieces = known = (epoch, pieces, starts)
        return known[1], known[2]

    def _random(self, epoch: int, part: int) -> np.random.Generator:
        return np.random.default_rng([self._seed or 0, self._rank, epoch, part])
