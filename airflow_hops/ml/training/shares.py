"""Each rank's share of the rows of each split, with the requested columns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_hops.core.errors import ArtifactNotFound, BadInput, InvalidArgument
from airflow_hops.core.prepare.options import TRAIN
from airflow_hops.ml.training.rank import Rank
from airflow_hops.ml.training.reader import SplitReader, open_split, row_count, split_names
from airflow_hops.ml.training.reader.units import Rest, Unit, share
from airflow_hops.ml.training.tables import SplitTable, read_table
from airflow_hops.ml.training.training_state import TrainingState

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from airflow_hops.core.artifacts.target import Target
    from airflow_hops.ml.features.feature_specs import OutputSpec

_PASSES_OF_AN_EPOCH = 1 << 20

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExamplesSource:
    """The examples of a training.

    Attributes:
        folder: Folder of the transformed examples; None without examples.
        outputs: The transform's outputs by name, the model's inputs.
        target: The label's column, the problem, its classes, the column of the rows' weights, and further labels; None
            without examples.
        splits_uri: Address of the splits if the ranks read them from a remote store; empty for ``folder``.
        storage_options: fsspec options of that store.
    """

    folder: Path | None = None
    outputs: Mapping[str, OutputSpec] = field(default_factory=dict)
    target: Target | None = None
    splits_uri: str = ""
    storage_options: Mapping[str, Any] = field(default_factory=dict)


class Shares:
    """Reads the shares of one rank; :class:`airflow_hops.ml.training.context.TrainContext` describes the arguments.

    Attributes:
        rows: Rows of this rank by split, of the splits that were read.
        columns: Features of the last table that was read of the split ``train``; None if none was.
        epoch: Epoch that seeds shuffling.
    """

    def __init__(self, rank: Rank, seed: int, source: ExamplesSource, state: TrainingState) -> None:
        self.source = source
        self.rows: dict[str, int] = {}
        self.columns: tuple[str, ...] | None = None
        self.epoch, self._epochs_begun = state.initial_epoch, 0
        self._rank, self._seed, self._state = rank, seed, state
        self._readers: dict[tuple[str, tuple[str, ...]], SplitReader] = {}
        self._opened: list[SplitReader] = []
        self._resumed_epoch: int | None = None

    def reader(self, split: str, columns: Sequence[str] | None = None) -> SplitReader:
        """See :meth:`airflow_hops.ml.training.context.TrainContext.reader`."""
        outputs = self.source.outputs
        names = tuple(outputs if columns is None else (name for name in outputs if name in columns))
        if (split, names) not in self._readers:
            self._readers[split, names] = self.open(split, columns)
        return self._readers[split, names]

    def open(self, split: str, columns: Sequence[str] | None = None) -> SplitReader:
        """Returns another reader of this rank's rows of a split, whose rows its caller may divide anew."""
        source, rank, outputs, target = self.source, self._rank, self.source.outputs, self.source.target
        folder = self._folder(split)
        self._check_names(columns or ())
        self._rank.channel.alive(f"reading {split}")
        reader = open_split(
            folder,
            {name: spec for name, spec in outputs.items() if columns is None or name in columns},
            rank=rank.number,
            size=rank.size,
            label=None if target is None else [each.label for each in target.all] if target.more else target.label,
            weight=target.weight if target else None,
            storage_options=source.storage_options,
        )
        self.rows[split] = reader.rows
        self._opened.append(reader)
        return reader

    def table(self, split: str, columns: Sequence[str] | None = None) -> SplitTable:
        """See :meth:`airflow_hops.ml.training.context.TrainContext.table`."""
        source = self.source
        folder, names = self._folder(split), tuple(source.outputs if columns is None else columns)
        self._check_names(names)
        if source.target is None:
            raise BadInput(f"{folder}: the examples have no label")
        if split == TRAIN:
            self.columns = names
        self._rank.channel.alive(f"reading {split}")
        result = read_table(
            folder,
            split,
            source.target,
            {name: source.outputs[name] for name in names},
            rank=self._rank.number,
            size=self._rank.size,
            storage_options=source.storage_options,
        )
        self.rows[split] = len(result)
        return result

    def steps(self, split: str, batch_size: int) -> int:
        """See :meth:`airflow_hops.ml.training.context.TrainContext.steps`; reads only the files' footers."""
        folder, rank = self._folder(split), self._rank
        rows = row_count(folder, storage_options=self.source.storage_options)
        check_batch_size(batch_size, rank.size)
        return share([Unit(0, 0, rows, 0)], rank.number, rank.size, folder).steps(batch_size)

    def dataset(
        self,
        split: str,
        batch_size: int,
        *,
        shuffle: bool = False,
        first_step: int = 0,
        columns: Sequence[str] | None = None,
        reader: SplitReader | None = None,
    ) -> tf.data.Dataset:
        """See :meth:`airflow_hops.ml.training.context.TrainContext.examples`; reads by ``reader`` if there is one."""
        check_batch_size(batch_size, self._rank.size)
        return (reader or self.reader(split, columns)).dataset(
            batch_size,
            shuffle_seed=self._seed if shuffle else None,
            epoch=self._count_passes(),
            first_step=first_step,
            rest=self.rest(first_step),
        )

    def batches(
        self,
        split: str,
        batch_size: int,
        *,
        shuffle: bool,
        first_step: int,
        columns: Sequence[str] | None = None,
        reader: SplitReader | None = None,
    ) -> Iterator[tuple[Any, ...]]:
        """See :meth:`airflow_hops.ml.training.context.TrainContext.batches`; reads by ``reader`` if there is one."""
        check_batch_size(batch_size, self._rank.size)
        position = self._state.position
        if reader is None and first_step and position.rows_by_rank(self._rank.size):
            raise BadInput(
                f"first_step is {first_step}, but the checkpoint {position} is of an epoch with unequal shares of the "
                "rows; read the batches by what has divided them, or delete the checkpoint to start again"
            )
        seed = self._seed if shuffle else None
        epoch = self.epoch * _PASSES_OF_AN_EPOCH
        return (reader or self.reader(split, columns)).batches(
            batch_size, shuffle_seed=seed, epoch=epoch, first_step=first_step, rest=self.rest(first_step)
        )

    def step_rows(self, reader: SplitReader, batch_size: int, first_step: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the number of rows of each step of an epoch from a step on: of this rank, and over all ranks."""
        rest = self.rest(first_step)
        own, every = reader.step_rows(batch_size, rest)
        first = first_step - (rest.steps if rest else 0)
        return own[first:], every[first:]

    def count_rows(self, reader: SplitReader, batch_size: int, first_step: int) -> tuple[int, int]:
        """Returns the number of rows of an epoch from a step on: of this rank, and over all ranks."""
        own, every = self.step_rows(reader, batch_size, first_step)
        return int(own.sum()), int(every.sum())

    def rest(self, first_step: int) -> Rest | None:
        """Returns the rest of a resumed epoch that other numbers of ranks have begun; None if they have not."""
        state = self._state
        parts = tuple((ranks, steps) for epoch, ranks, steps in state.position.parts if epoch == self.epoch)
        done, resumed = sum(steps for _, steps in parts), state.resumed_from
        if first_step > done and resumed is not None and resumed.ranks != self._rank.size:
            if self._resumed_epoch not in (None, self.epoch):
                return None
            self._resumed_epoch = self.epoch
            parts = (*parts, (resumed.ranks, first_step - done))
            state.move(parts=tuple((self.epoch, *each) for each in parts))
        if not parts or not first_step:
            return None
        return Rest(self.epoch * _PASSES_OF_AN_EPOCH, parts, state.position.rows_by_rank(parts[0][0]))

    def suffice(self, split: str) -> bool:
        """Returns whether a split has rows for every rank."""
        root, options, ranks = self._root(split), self.source.storage_options, self._rank.size
        there_is_one = split in split_names(root, storage_options=options)
        rows = row_count(f"{root}/{split}", storage_options=options) if there_is_one else 0
        if rows < ranks:
            log.warning("split %r holds %d rows for %d ranks: it is not evaluated", split, rows, ranks)
        return rows >= ranks

    def begin_epoch(self, epoch: int) -> None:
        """Sets the epoch that seeds shuffling; a resumed epoch keeps its order."""
        self.epoch = epoch
        self._epochs_begun += 1

    @property
    def failure(self) -> Exception | None:
        """The error that occurred while a dataset was read; TensorFlow's does not tell whether a retry may help."""
        return next((reader.failure for reader in self._opened if reader.failure is not None), None)

    def _root(self, split: str) -> str:
        if self.source.folder is None:
            raise BadInput(f"there is no split {split!r}: the training has no examples")
        return self.source.splits_uri or str(self.source.folder)

    def _folder(self, split: str) -> str:
        root = self._root(split)
        if split not in split_names(root, storage_options=self.source.storage_options):
            raise ArtifactNotFound(f"{root}/{split}").with_text(
                f"{root}: there is no split {split!r} among the transformed examples"
            )
        return f"{root}/{split}"

    def _check_names(self, columns: Sequence[str]) -> None:
        outputs = self.source.outputs
        unknown = [name for name in columns if name not in outputs]
        if unknown:
            raise BadInput(f"{', '.join(map(repr, unknown))} is not among the features: {', '.join(outputs)}")

    def _count_passes(self) -> Callable[[], int]:
        """Returns a counter of a dataset's passes, which restarts at 0 in each epoch."""
        epoch, passes = -1, 0

        def number() -> int:
            nonlocal epoch, passes
            passes = 0 if self._epochs_begun != epoch else passes + 1
            epoch = self._epochs_begun
            return self.epoch * _PASSES_OF_AN_EPOCH + passes

        return number


def check_batch_size(batch_size: int, ranks: int) -> None:
    """Checks the number of rows of a step over all ranks.

    Raises:
        BadInput: it is not an integer, or less than one row for each rank.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, Integral):
        raise InvalidArgument("batch_size", batch_size, ", expected a number of rows over all ranks")
    if batch_size < ranks:
        raise InvalidArgument("batch_size", batch_size, f", fewer rows than the {ranks} ranks that share them")
