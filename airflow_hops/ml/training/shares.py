"""Each rank's share of the rows of each split, with the requested columns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.prepare import TRAIN
from airflow_hops.ml.training.reader import SplitReader, open_split, row_count, split_names
from airflow_hops.ml.training.reader.units import Rest, Unit, share
from airflow_hops.ml.training.tables import SplitTable, read_table

if TYPE_CHECKING:
    import tensorflow as tf

    from airflow_hops.ml.training.context import TrainContext

_PASSES_OF_AN_EPOCH = 1 << 20

log = logging.getLogger(__name__)


class Shares:
    """Reads the shares of one rank for its :class:`airflow_hops.ml.training.context.TrainContext`."""

    def __init__(self, context: TrainContext) -> None:
        self._context = context
        self._readers: dict[tuple[str, tuple[str, ...]], SplitReader] = {}
        self._resumed_epoch: int | None = None

    def reader(self, split: str, columns: Sequence[str] | None = None) -> SplitReader:
        """See :meth:`airflow_hops.ml.training.context.TrainContext.reader`."""
        context = self._context
        folder, outputs, target = self._folder(split), context.feature_outputs, context.target
        names = tuple(outputs if columns is None else (name for name in outputs if name in columns))
        self._check_names(columns or ())
        if (split, names) not in self._readers:
            context.on_alive(f"reading {split}")
            self._readers[split, names] = reader = open_split(
                folder,
                {name: outputs[name] for name in names},
                rank=context.rank,
                size=context.size,
                label=None if target is None else [each.label for each in target.all] if target.more else target.label,
                weight=target.weight if target else None,
                storage_options=context.storage_options,
            )
            context.rows[split] = reader.rows
        return self._readers[split, names]

    def table(self, split: str, columns: Sequence[str] | None = None) -> SplitTable:
        """See :meth:`airflow_hops.ml.training.context.TrainContext.table`."""
        context = self._context
        folder, names = self._folder(split), tuple(context.feature_outputs if columns is None else columns)
        self._check_names(names)
        if context.target is None:
            raise BadInput(f"{folder}: the examples have no label")
        if split == TRAIN:
            context.columns_taken = names
        context.on_alive(f"reading {split}")
        result = read_table(
            folder,
            split,
            context.target,
            {name: context.feature_outputs[name] for name in names},
            rank=context.rank,
            size=context.size,
            storage_options=context.storage_options,
        )
        context.rows[split] = len(result)
        return result

    def steps(self, split: str, batch_size: int) -> int:
        """See :meth:`airflow_hops.ml.training.context.TrainContext.steps`; reads only the files' footers."""
        context, folder = self._context, self._folder(split)
        rows = row_count(folder, storage_options=context.storage_options)
        check_batch_size(batch_size, context.size)
        return share([Unit(0, 0, rows, 0)], context.rank, context.size, folder).steps(batch_size)

    def dataset(
        self, split: str, batch_size: int, *, shuffle: bool, first_step: int, columns: Sequence[str] | None
    ) -> tf.data.Dataset:
        """See :meth:`airflow_hops.ml.training.context.TrainContext.examples`."""
        check_batch_size(batch_size, self._context.size)
        return self.reader(split, columns).dataset(
            batch_size,
            shuffle_seed=self._context.seed if shuffle else None,
            epoch=self._count_passes(),
            first_step=(lambda: first_step) if first_step else None,
            rest=self._rest(first_step),
        )

    def batches(
        self, split: str, batch_size: int, *, shuffle: bool, first_step: int, columns: Sequence[str] | None
    ) -> Iterator[tuple[Any, ...]]:
        """See :meth:`airflow_hops.ml.training.context.TrainContext.batches`."""
        check_batch_size(batch_size, self._context.size)
        seed = self._context.seed if shuffle else None
        epoch = self._context.epoch * _PASSES_OF_AN_EPOCH
        return self.reader(split, columns).batches(
            batch_size, shuffle_seed=seed, epoch=epoch, first_step=first_step, rest=self._rest(first_step)
        )

    def _rest(self, first_step: int) -> Rest | None:
        """Returns the rest of a resumed epoch that other numbers of ranks have begun; None if they have not."""
        context = self._context
        parts = tuple((ranks, steps) for epoch, ranks, steps in context.position.parts if epoch == context.epoch)
        done, resumed = sum(steps for _, steps in parts), context.resumed_from
        if first_step > done and resumed is not None and resumed.ranks != context.size:
            if self._resumed_epoch not in (None, context.epoch):
                return None
            self._resumed_epoch = context.epoch
            parts = (*parts, (resumed.ranks, first_step - done))
            context.state.move(parts=tuple((context.epoch, *each) for each in parts))
        return Rest(context.epoch * _PASSES_OF_AN_EPOCH, parts) if parts and first_step else None

    def suffice(self, split: str) -> bool:
        """Returns whether a split has rows for every rank."""
        root, context = self._root(split), self._context
        there_is_one = split in split_names(root, storage_options=context.storage_options)
        rows = row_count(f"{root}/{split}", storage_options=context.storage_options) if there_is_one else 0
        if rows < context.size:
            log.warning("split %r holds %d rows for %d ranks: it is not evaluated", split, rows, context.size)
        return rows >= context.size

    @property
    def failure(self) -> Exception | None:
        """The error that occurred while a dataset was read."""
        return next((reader.failure for reader in self._readers.values() if reader.failure is not None), None)

    def _root(self, split: str) -> str:
        context = self._context
        if context.examples_dir is None:
            raise BadInput(f"there is no split {split!r}: the training has no examples")
        return context.splits_uri or str(context.examples_dir)

    def _folder(self, split: str) -> str:
        root = self._root(split)
        if split not in split_names(root, storage_options=self._context.storage_options):
            raise BadInput(f"{root}: there is no split {split!r} among the transformed examples")
        return f"{root}/{split}"

    def _check_names(self, columns: Sequence[str]) -> None:
        outputs = self._context.feature_outputs
        unknown = [name for name in columns if name not in outputs]
        if unknown:
            raise BadInput(f"{', '.join(map(repr, unknown))} is not among the features: {', '.join(outputs)}")

    def _count_passes(self) -> Callable[[], int]:
        """Returns a counter of a dataset's passes, which restarts at 0 in each epoch."""
        context, epoch, passes = self._context, -1, 0

        def number() -> int:
            nonlocal epoch, passes
            passes = 0 if context.epochs_begun != epoch else passes + 1
            epoch = context.epochs_begun
            return context.epoch * _PASSES_OF_AN_EPOCH + passes

        return number


def check_batch_size(batch_size: int, ranks: int) -> None:
    """Checks the number of rows of a step over all ranks.

    Raises:
        BadInput: it is not an integer, or less than one row for each rank.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, Integral):
        raise BadInput(f"batch_size is {batch_size!r}, expected a number of rows over all ranks")
    if batch_size < ranks:
        raise BadInput(f"batch_size is {batch_size}, fewer rows than the {ranks} ranks that share them")
