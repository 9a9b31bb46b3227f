"""Rows by segment, in bounded memory: each part is sorted by segment into files, and indexed.

The index has a row for each segment of a part and split: where its rows are, and the sum of their hashes, which a
fingerprint is made of; and a row for each segment of a part and reason to reject rows. A fleet's artifact keeps the
index, the surveys and a sample of the training rows, so that the next run reads only parts that are new, and those with
rows of the segments that it trains.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.errors import BadInput
from airflow_hops.core.json_fields import CheckedFields
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.core.prepare.options import TRAIN
from airflow_hops.extensions.fleet.ml.columns import HASH, plain, ranked, row_hashes
from airflow_hops.extensions.fleet.ml.parts import Choose, Part
from airflow_hops.ml.prepare.classes import REJECTED
from airflow_hops.ml.readers import scan
from airflow_hops.ml.spark.pools import Pool

ROWS_FOLDER = "rows"
"""Folder of a fleet's artifact with what is known of its rows."""
_PART = "!part"
_FILE = "file "
"""Beginning of the reason to reject all rows of a part."""
_INDEX_FILE, _SURVEYS_FILE, _SAMPLE_FILE = "index.parquet", "surveys.json", "sample.parquet"
_INDEX = pa.schema(
    {
        "part": pa.string(),
        "split": pa.string(),
        "segment": pa.string(),
        "first": pa.int64(),
        "rows": pa.int64(),
        "hash": pa.uint64(),
    }
)

Progress = Callable[[float, str], None]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Survey(CheckedFields):
    """Facts about a part's rows that the index does not have.

    Attributes:
        types: Types of the features and of the key, as in :class:`~airflow_hops.extensions.fleet.ml.columns.Columns`;
            integers of which some are missing are floats, as in requests, and a string column without values is "".
        nulls: Rows without a key.
        rejected: Rows that are in no split, by reason.
    """

    types: Mapping[str, str]
    nulls: int
    rejected: Mapping[str, int]


def sort_part(folder: Path, choose: Choose, part: Part) -> tuple[pa.Table, Survey]:
    """Writes a part's rows, sorted by segment and hash, to a file for each split; returns the index and the survey."""
    read = part.read(choose)
    types, holed, filled = dict[str, str](), set[str](), set[str]()
    index, nulls = [_INDEX.empty_table()], 0
    for split, rows in read.splits.items():
        columns = choose(rows.schema)
        table = plain(rows.select(sorted(columns.read)))
        types |= columns.types
        holed |= {name for name in columns.features if types[name] == "int64" and table[name].null_count}
        filled |= {name for name in columns.types if table[name].null_count < len(table)}
        keys = table[columns.segment].cast(pa.string())
        nulls += keys.null_count
        if keys.null_count:  # the run fails, with the number of all
            table, keys = table.filter(keys.is_valid()), keys.drop_null()
        table = table.drop([columns.segment])
        hashes = row_hashes(table)
        coded = keys.combine_chunks().dictionary_encode()
        order = np.lexsort((hashes, codes := coded.indices.to_numpy()))
        first = np.flatnonzero(np.diff(codes[order], prepend=-1))
        sizes = np.diff(first, append=len(order))
        sums = np.add.reduceat(hashes[order], first) if len(first) else hashes
        values = [[part.name] * len(first), [split] * len(first), coded.dictionary, first, sizes, sums]
        index.append(pa.table(values, schema=_INDEX))
        table = table.append_column(HASH, pa.array(hashes)).take(pa.array(order))
        with pa.ipc.new_file(str(folder / f"{part.name}-{split}.arrow"), table.schema) as writer:
            writer.write_table(table.combine_chunks())
    rejected = {f"{_FILE * bool(read.unusable)}{reason}": keys for reason, keys in read.rejected.items()}
    for reason, column in rejected.items():  # also those of no segment are counted in the survey
        nulls += column.null_count if read.unusable else 0
        for key, count in ranked(column).items():
            if key.strip():
                row = [part.name, REJECTED + reason, key, 0, count, 0]
                index.append(pa.table([[value] for value in row], schema=_INDEX))
    types |= dict.fromkeys(holed, "float")
    types |= {name: "" for name, kind in types.items() if kind == "string" and name not in filled}
    return pa.concat_tables(index), Survey(types, nulls, {reason: len(keys) for reason, keys in rejected.items()})


def _unusable_parts(parts: Mapping[str, Part], surveys: Mapping[str, Survey]) -> dict[str, str]:
    """Returns why parts cannot be used beside most others, by name: a column is missing, of another type, or empty."""
    types = {name: surveys[name].types for name in parts if surveys[name].types}
    columns = Counter(column for own in types.values() for column in own)
    kinds = Counter((column, kind == "string") for own in types.values() for column, kind in own.items() if kind)
    reasons: dict[str, str] = {}
    for name, own in types.items():
        for column, count in columns.items():
            texts, numbers, kind = kinds[column, True], kinds[column, False], own.get(column)
            has, is_text = kind is not None, kind == "string"
            words = {
                f"there is no column {column!r}, which most files have": not has and 2 * count > len(types),
                f"column {column!r} is not in all files": has and 2 * count < len(types),
                f"column {column!r} has no value, and numbers in other files": kind == "" and numbers > texts,
                f"column {column!r} is string, and a number in most files": is_text and numbers > texts,
                f"column {column!r} is a number, and string in most files": kind not in (None, "", "string")
                and texts > numbers,
            }
            if reason := next((reason for reason, holds in words.items() if holds), ""):
                reasons.setdefault(name, f"{parts[name].file.rpartition('/')[2]}: {reason}")
    return reasons


def _rejected_files(index: pa.Table, unusable: Mapping[str, str]) -> pa.Table:
    """Returns index rows of unusable parts as those of rejected rows."""
    groups = index.group_by(["part", "segment"]).aggregate([("rows", "sum")]).to_pylist()
    rows = [
        [each["part"], REJECTED + _FILE + unusable[each["part"]], each["segment"], 0, each["rows_sum"], 0]
        for each in groups
    ]
    return pa.table([[row[number] for row in rows] for number in range(len(_INDEX))], schema=_INDEX)


@dataclass
class KnownParts:
    """Knowledge of an earlier fleet about its parts: index, surveys, and a sample of a share of the training rows."""

    index: pa.Table
    surveys: Mapping[str, Survey]
    sample: Callable[[], pa.Table]
    share: float

    @classmethod
    def read(cls, folder: Path | None) -> KnownParts:
        """Reads what the artifact in a folder knows; nothing without one, or if it has no rows."""
        folder = None if folder is None else folder / ROWS_FOLDER
        if folder is None or not folder.exists():
            return cls(_INDEX.empty_table(), {}, pa.table, 0.0)
        try:
            known = json.loads((folder / _SURVEYS_FILE).read_text())
            surveys = {name: Survey.from_dict(each) for name, each in known["surveys"].items()}
            index = scan.table([folder / _INDEX_FILE]).select(_INDEX.names).cast(_INDEX)
            return cls(index, surveys, partial(scan.table, [folder / _SAMPLE_FILE]), known["share"])
        except (TypeError, KeyError, ValueError) as error:
            raise BadInput(
                f"{folder}: {type(error).__name__}: {error}; the files are damaged, or another version of airflow-hops "
                "wrote them: train the fleet again, under another name of the model"
            ) from error


@dataclass
class SegmentedRows:
    """The rows of all parts by segment.

    Attributes:
        folder: Folder of the sorted files.
        choose: Returns the columns of a file.
        parts: The parts by name.
        surveys: Survey of each part.
        whole: The index of all parts.
        unusable: Why parts cannot be used, by name.
        index: The index of the rows of usable parts.
        rejects: The index of rejected rows.
        sorted: Names of the parts that are in the folder.
    """

    folder: Path
    choose: Choose
    parts: Mapping[str, Part]
    surveys: Mapping[str, Survey]
    whole: pa.Table
    unusable: Mapping[str, str]
    index: pa.Table
    rejects: pa.Table
    sorted: set[str] = field(default_factory=set)

    @classmethod
    def collect(
        cls, pool: Pool, folder: Path, choose: Choose, parts: Sequence[Part], known: KnownParts, progress: Progress
    ) -> SegmentedRows:
        """Sorts and surveys all parts that are not known.

        Raises:
            BadInput: a part cannot be used, and it is not only segments without other rows that would fail.
        """
        folder.mkdir()
        by_name = {part.name: part for part in sorted(parts, key=lambda part: part.name)}
        new = [part for name, part in by_name.items() if name not in known.surveys]
        log.info("%d of %d parts of the rows are new", len(new), len(by_name))
        results = _sorted(pool, folder, choose, new, progress)
        surveys = {**known.surveys, **{part.name: survey for part, (_, survey) in zip(new, results, strict=True)}}
        old = known.index.filter(pc.is_in(known.index["part"], pa.array(list(by_name), pa.string())))
        index = pa.concat_tables([old, *(index for index, _ in results)])
        index = index.sort_by([(name, "ascending") for name in ("part", "split", "segment")])
        names, is_rejected = {part.name for part in new}, pc.starts_with(index["split"], REJECTED)
        surveys = {name: surveys[name] for name in by_name}
        unusable = _unusable_parts(by_name, surveys)
        is_odd = pc.is_in(index["part"], pa.array([*unusable], pa.string()))
        is_used = pc.invert(pc.or_(is_rejected, is_odd))
        odd = _rejected_files(index.filter(pc.and_(is_odd, pc.invert(is_rejected))), unusable)
        rows = cls(
            folder, choose, by_name, surveys, index, unusable, index.filter(is_used),
            pa.concat_tables([index.filter(is_rejected), odd]), names,
        )  # fmt: skip
        rows._check_files()
        return rows

    def _check_files(self) -> None:
        """Raises BadInput with the reason why a part cannot be used, if a segment of it has rows in a usable one."""
        of_files = self.rejects.filter(pc.starts_with(self.rejects["split"], REJECTED + _FILE))
        shared = of_files.filter(pc.is_in(of_files["segment"], self.index["segment"].unique()))
        if len(shared := shared if len(self.index) else of_files):
            raise BadInput(shared["split"][0].as_py().removeprefix(REJECTED + _FILE))

    def types(self) -> dict[str, str]:
        """Returns the types of the features and of the key. Raises BadInput if files differ in their columns."""
        types: dict[str, str] = {}
        for name, part in self.parts.items():
            own = {} if name in self.unusable else self.surveys[name].types
            types = types or dict(own)
            if own and (differing := sorted(types.keys() ^ own.keys())):
                raise BadInput(
                    f"{part.file}: column {differing[0]!r} is not in all files; expected the same columns in each"
                )
            for column in (column for column, kind in own.items() if kind != types[column]):
                if "" in (own[column], types[column]):
                    types[column] = own[column] or types[column]
                elif "string" in (kinds := {own[column], types[column]}):
                    texts = (n for n, each in self.surveys.items() if each.types.get(column) == "string")
                    (other,) = kinds - {"string"}
                    raise BadInput(
                        f"{self.parts[next(texts)].file}: column {column!r} is string, and {other} in other files; "
                        "expected one type, which a source's schema can name"
                    )
                else:
                    types[column] = "float"
        return {column: kind or "string" for column, kind in types.items()}

    def nulls(self) -> int:
        """Returns the number of rows without a key."""
        return sum(each.nulls for each in self.surveys.values())

    def rejected(self) -> Counter[str]:
        """Returns the rows that are in no split, by reason."""
        odd = self.rejects.filter(pc.is_in(self.rejects["part"], pa.array([*self.unusable], pa.string())))
        odd = odd.filter(pc.starts_with(odd["split"], REJECTED + _FILE))
        return sum((Counter(each.rejected) for each in self.surveys.values()), _by_reason(odd))

    def rejected_of_others(self) -> Counter[str]:
        """Returns the rejected rows of segments that have none left, which fail, by reason."""
        return _by_reason(
            self.rejects.filter(pc.invert(pc.is_in(self.rejects["segment"], self.index["segment"].unique())))
        )

    @cached_property
    def segments(self) -> tuple[str, ...]:
        """Keys of all rows, also of rejected ones, sorted by UTF-8; a segment's number is its position."""
        keys = {*self.index["segment"].unique().to_pylist(), *self.rejects["segment"].unique().to_pylist()}
        return tuple(sorted(keys, key=str.encode))

    @cached_property
    def rejected_of(self) -> dict[str, tuple[str, str]]:
        """Numbers of rejected rows by reason, in words, and one of their files, of each segment that has some."""
        groups = self.rejects.group_by(["segment", "split"]).aggregate([("rows", "sum"), ("part", "min")])
        words, files = defaultdict[str, list[str]](list), dict[str, str]()
        for row in groups.sort_by("split").to_pylist():
            words[row["segment"]].append(f"{row['split'].removeprefix(REJECTED)} in {row['rows_sum']:,}")
            files.setdefault(row["segment"], self.parts[row["part_min"]].file.rpartition("/")[2])
        return {key: (", ".join(own), files[key]) for key, own in words.items()}

    @cached_property
    def _numbers(self) -> np.ndarray:
        """Number of each index row's segment."""
        values: np.ndarray = pc.index_in(self.index["segment"], pa.array(self.segments, pa.string())).to_numpy()
        return values

    @cached_property
    def _is_train(self) -> np.ndarray:
        mask: np.ndarray = pc.equal(self.index["split"], TRAIN).to_numpy()
        return mask

    @cached_property
    def counts(self) -> np.ndarray:
        """Rows of each segment, held out and for training, ``[segments, 2]``."""
        return self._sums("rows", np.int64)

    def _sums(self, column: str, dtype: type) -> np.ndarray:
        sums: np.ndarray = np.zeros((len(self.segments), 2), dtype)
        np.add.at(sums, (self._numbers, self._is_train.astype(int)), self.index[column].to_numpy())
        return sums

    def fingerprints(self, options: str) -> dict[str, str]:
        """Returns the fingerprint of each segment's rows, in any order, and of the options of its model."""
        facts = np.concatenate([self.counts.astype(np.uint64), self._sums("hash", np.uint64)], axis=1)
        start = hashlib.sha256(options.encode())
        prints = {}
        for segment, numbers in zip(self.segments, facts, strict=True):
            digest = start.copy()
            digest.update(numbers.tobytes())
            digest.update(self.rejected_of.get(segment, ("", ""))[0].encode())
            prints[segment] = digest.hexdigest()
        return prints

    def rows_by_split(self) -> dict[str, tuple[int, int]]:
        """Returns the rows of each split, and those of segments that have training rows."""
        table = pa.table(
            {"split": self.index["split"], "rows": self.index["rows"], "known": self.counts[self._numbers, 1] > 0}
        )
        rows: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for each in table.group_by(["split", "known"]).aggregate([("rows", "sum")]).to_pylist():
            rows[each["split"]][0] += each["rows_sum"]
            rows[each["split"]][1] += each["rows_sum"] * each["known"]
        return {split: (rows[split][0], rows[split][1]) for split in sorted(rows)}

    def sort(self, pool: Pool, names: Iterable[str], progress: Progress) -> None:
        """Sorts known parts, unless they are."""
        parts = [self.parts[name] for name in sorted({*names} - self.sorted)]
        _sorted(pool, self.folder, self.choose, parts, progress)
        self.sorted |= {part.name for part in parts}

    def parts_of(self, numbers: Collection[int]) -> list[str]:
        """Returns the names of the parts with rows of segments."""
        chosen = np.isin(self._numbers, list(numbers))
        names: list[str] = self.index["part"].filter(pa.array(chosen)).unique().to_pylist()
        return names

    def places(self, numbers: Sequence[int]) -> pa.Table:
        """Returns where the rows of segments are, for :func:`read_rows`."""
        chosen = np.flatnonzero(np.isin(self._numbers, numbers))
        table = self.index.take(pa.array(chosen)).drop(["segment", "hash"])
        return table.append_column("number", pa.array(self._numbers[chosen]))

    def sample(self, pool: Pool, most_rows: int, known: KnownParts, progress: Progress) -> tuple[pa.Table, float]:
        """Returns a uniform sample of the training rows, in an order of their values, and its share, a power of 2."""
        share = 1.0
        while share * self.counts[:, 1].sum() > most_rows:
            share /= 2
        if share > known.share:
            self.sort(pool, self.parts, progress)
        tables = []
        for name in self.sorted & {*self.index.filter(pa.array(self._is_train))["part"].unique().to_pylist()}:
            table = _table(self.folder, name, TRAIN)
            table = table.filter(_is_below(share, table[HASH]))
            tables.append(table.append_column(_PART, pa.array([name] * len(table), pa.string())))
        if others := self.parts.keys() - self.sorted - self.unusable.keys():
            table = known.sample()
            own = pc.is_in(table[_PART], pa.array(sorted(others), pa.string()))
            tables.append(table.filter(pc.and_(own, _is_below(share, table[HASH]))))
        order = [(HASH, "ascending"), (_PART, "ascending")]
        return _joined(tables).sort_by(order).combine_chunks(), share

    def write(self, folder: Path, sample: pa.Table, share: float) -> None:
        """Writes what the next run needs to know."""
        (folder := folder / ROWS_FOLDER).mkdir()
        write_parquet(self.whole, folder / _INDEX_FILE)
        write_parquet(sample, folder / _SAMPLE_FILE)
        surveys = {name: survey.to_dict() for name, survey in self.surveys.items()}
        (folder / _SURVEYS_FILE).write_text(json.dumps({"share": share, "surveys": surveys}))


def _by_reason(rejects: pa.Table) -> Counter[str]:
    groups = rejects.group_by("split").aggregate([("rows", "sum")]).to_pylist()
    return Counter({each["split"].removeprefix(REJECTED): each["rows_sum"] for each in groups})


def read_rows(folder: Path, places: pa.Table, *, is_train: bool) -> dict[int, pa.Table]:
    """Returns the rows of segments, for training or held out, by their number; their parts must be sorted.

    The order of a segment's rows depends only on their values: files that are written in another order change
    neither its fingerprint nor its model.
    """
    slices: dict[int, list[pa.Table]] = defaultdict(list)
    place, table = None, pa.table({})
    for row in places.to_pylist():
        if (row["split"] == TRAIN) == is_train:
            if place != (row["part"], row["split"]):
                table = _table(folder, *(place := (row["part"], row["split"])))
            slices[row["number"]].append(table.slice(row["first"], row["rows"]))
    tables = {number: _joined(own) for number, own in sorted(slices.items())}
    return {
        number: (table if len(slices[number]) == 1 else table.sort_by(HASH)).combine_chunks()
        for number, table in tables.items()
    }


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Returns the rows of tables; numbers that are integers in some and floats in others are floats."""
    first = tables[0].schema
    mixed = {name for name in first.names if any(each.field(name).type != first.field(name).type for each in tables)}
    schema = pa.schema([(each.name, pa.float64() if each.name in mixed else each.type) for each in first])
    return pa.concat_tables([table.cast(schema) for table in tables])


def _table(folder: Path, part: str, split: str) -> pa.Table:
    with pa.memory_map(str(folder / f"{part}-{split}.arrow")) as source:
        return pa.ipc.open_file(source).read_all()


def _is_below(share: float, hashes: pa.ChunkedArray) -> pa.Array:
    return pa.array(hashes.to_numpy() <= np.uint64(min(share * 2**64, 2**64 - 1)))


def _sorted(
    pool: Pool, folder: Path, choose: Choose, parts: Sequence[Part], progress: Progress
) -> list[tuple[pa.Table, Survey]]:
    report = lambda done: progress(0.25 * done / len(parts), f"{done} of {len(parts)} parts sorted")  # noqa: E731
    return pool.run(partial(sort_part, folder, choose), parts, report) if parts else []


def divided(numbers: Sequence[int], rows: Sequence[int], most: int) -> list[tuple[int, ...]]:
    """Divides segments into groups of about ``most`` rows.

    >>> divided([0, 1, 5, 6], [30_000, 20_000, 5, 5], 40_000)
    [(0, 1), (5, 6)]
    """
    groups: list[tuple[int, ...]] = []
    own: list[int] = []
    total = 0
    for number, count in zip(numbers, rows, strict=True):
        own, total = [*own, number], total + count
        if total >= most:
            groups.append(tuple(own))
            own, total = [], 0
    return [*groups, tuple(own)] if own else groups
