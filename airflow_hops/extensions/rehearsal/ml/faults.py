"""Faults: changes of rows in growing sizes, as broken pipelines and a changed world make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.ml.distances.sides import Array

# A fault of a larger share of the rows changes those of a smaller share, too, so that what is found of one size is as
# good as always found of a larger one, and the smallest size can be looked for in a few steps.

SHARE, DEVIATIONS, FACTOR = "share", "sd", "factor"
_SIZES: Mapping[str, tuple[float, ...]] = {
    SHARE: tuple(map(float, np.geomspace(0.002, 1, 17).round(6))),
    DEVIATIONS: tuple(map(float, np.geomspace(0.005, 5, 17).round(6))),
    FACTOR: tuple(map(float, (1 + np.geomspace(0.005, 9, 17)).round(6))),
}
_CENTS = 100
_NEW = "a new value"
_RARE = 0.005
"""Share of the reference below which a number is a placeholder that it hardly has."""

_CHANGED: Mapping[str, Callable[[str], str]] = {
    "encoding": lambda text: text.encode("utf-16-le").decode("latin-1"),
    "truncated": lambda text: text[: (len(text) + 1) // 2],
}
_WORDS = {
    "encoding": "{size} of the rows in another encoding",
    "truncated": "{size} of the rows cut to half of their length",
}

Columns: TypeAlias = dict[str, pa.Array]


@dataclass(frozen=True)
class Target:
    """Rows that a fault is planted into.

    Attributes:
        rows: The rows.
        earlier: Those of the window before, as many.
        ranks: Order in which a growing fault reaches the rows, a permutation, ``[rows]``.
    """

    rows: pa.Table
    earlier: pa.Table
    ranks: Array

    def reached(self, share: float) -> pa.Array:
        """Returns which rows a fault of a share of the rows reaches."""
        return pa.array(self.ranks < round(share * len(self.ranks)))


@dataclass(frozen=True, eq=False)
class Fault:
    """A fault of a feature, or of whole rows.

    Attributes:
        kind: Its name.
        features: Features whose values it changes; none for whole rows.
        words: Description, with ``{size}`` for the size.
        unit: Unit of its sizes.
        plant: Returns the changed columns for rows and a size.
    """

    kind: str
    features: tuple[str, ...]
    words: str
    unit: str
    plant: Callable[[Target, float], Columns]

    @property
    def sizes(self) -> tuple[float, ...]:
        """Sizes that are tried, ascending."""
        return _SIZES[self.unit]

    def described(self, size: float) -> str:
        """Describes the fault of a size."""
        return self.words.format(size=f"{100 * size:.3g}%" if self.unit == SHARE else f"{size:.4g}")


def faults_of(reference: pa.Table, names: Sequence[str]) -> list[Fault]:
    """Returns the faults that features can have, by their values in the reference.

    Args:
        reference: Sample of the reference's rows.
        names: Features; a fault swaps two of one type, in this order.
    """
    kinds = {name: _kind(reference[name].type) for name in names}
    return [
        fault
        for place, name in enumerate(names)
        for fault in _of_feature(
            name,
            reference[name].combine_chunks(),
            kinds[name],
            next((other for other in [*names[place + 1 :], *names[:place]] if kinds[other] == kinds[name]), None),
        )
    ]


def faults_of_rows(names: Sequence[str], reference: pa.Table) -> list[Fault]:
    """Returns the faults of whole rows: stale and repeated ones, and shifted columns."""
    kinds = {name: _kind(reference[name].type) for name in names}
    alike = {kind: [name for name in names if kinds[name] == kind] for kind in kinds.values()}
    after = {name: those[(those.index(name) + 1) % len(those)] for those in alike.values() for name in those}

    def repeated(target: Target, size: float) -> Columns:
        rows, most = np.arange(len(target.ranks)), round((1 - size) * len(target.ranks))
        order = np.argsort(-target.ranks)  # rows that are reached last are repeated
        rows[target.ranks < len(rows) - most] = order[np.arange(len(rows) - most) % max(1, most)]
        return dict(zip(names, target.rows.select(names).take(pa.array(rows)).columns, strict=True))

    def shifted(target: Target, size: float) -> Columns:
        reached = target.reached(size)
        return {name: _replaced(target.rows, name, reached, target.rows[after[name]]) for name in names}

    stale = "{size} of the rows again from the window before"
    return [
        Fault("stale", (), stale, SHARE, lambda target, size: _taken(target, size, names)),
        Fault("repeated", (), "{size} of the rows repeat others, as by a join", SHARE, repeated),
        *([Fault("shifted_columns", (), "columns of {size} of the rows shifted by one", SHARE, shifted)] * (
            any(after[name] != name for name in names)
        )),
    ]  # fmt: skip


def together(one: Fault, other: Fault) -> Fault:
    """Returns two faults of the same unit and size at once."""
    words = f"{one.words} of both"
    return Fault(
        one.kind,
        (*one.features, *other.features),
        words,
        one.unit,
        lambda target, size: one.plant(target, size) | other.plant(target, size),
    )


def _kind(of_type: pa.DataType) -> str:
    if pa.types.is_boolean(of_type):
        return "boolean"
    if pa.types.is_integer(of_type):
        return "whole number"  # a server refuses others for it
    if pa.types.is_floating(of_type):
        return "number"
    texts = {pa.string(), pa.large_string(), pa.binary(), pa.large_binary()}
    return "text" if of_type in texts else str(of_type)


def _of_feature(name: str, values: pa.Array, kind: str, partner: str | None) -> Iterator[Fault]:
    def of(fault: str, words: str, new: Callable[[Target], Any]) -> Fault:
        def plant(target: Target, size: float) -> Columns:
            return {name: _replaced(target.rows, name, target.reached(size), new(target))}

        return Fault(fault, (name,), words, SHARE, plant)

    def numbers(fault: str, words: str, unit: str, new: Callable[[Any, float], Any]) -> Fault:
        def plant(target: Target, size: float) -> Columns:
            return {name: _as_numbers(target.rows[name], new(target.rows[name].cast(pa.float64()), size))}

        return Fault(fault, (name,), words, unit, plant)

    if kind.endswith("number"):
        known = values.drop_null().cast(pa.float64()).to_numpy()
        known = known[np.isfinite(known)]
        spread = float(known.std()) if len(known) else 0.0
        if spread > 0:
            words = "shift of {size} standard deviations"
            yield numbers("shift", words, DEVIATIONS, lambda column, size: pc.add(column, size * spread))
        if len(known) and known.any():
            yield numbers("scale", "values times {size}", FACTOR, pc.multiply)
            words = f"{{size}} of the rows times {_CENTS}, as cents for euros"
            yield of("units", words, lambda target: _as_numbers(target.rows[name], _cents(target.rows[name])))
        default = next((each for each in (0, -1, -999) if not len(known) or (known == each).mean() < _RARE), -999)
        yield of("default", f"{{size}} of the rows have the default {default}", lambda target: default)
    elif kind == "text":
        yield from _of_text(name, values, of)
    yield of("missing", "{size} of the rows missing, as by a late join", lambda target: None)
    yield of("stale", "{size} of the rows with values of the window before", lambda target: target.earlier[name])
    if partner is not None:

        def swapped(target: Target, size: float) -> Columns:
            reached, rows = target.reached(size), target.rows
            return {a: _replaced(rows, a, reached, rows[b]) for a, b in ((name, partner), (partner, name))}

        yield Fault("swapped", (name, partner), f"{{size}} of the rows swapped with {partner}", SHARE, swapped)


def _of_text(name: str, values: pa.Array, of: Callable[..., Fault]) -> Iterator[Fault]:
    counts = pc.value_counts(values.drop_null())
    if not len(counts):
        return
    most = counts.field(0)[int(np.argmax(counts.field(1).to_numpy()))]
    shown = str(_text(most.as_py()))[:30]
    yield of("new_category", "{size} of the rows a new value", lambda target: _NEW)
    yield of("default", f"{{size}} of the rows have the default {shown!r}", lambda target: most)
    if len(counts) > 1:

        def vanished(target: Target, size: float) -> Columns:
            column = target.rows[name]
            gone = pc.fill_null(pc.equal(column, pa.scalar(most.as_py(), column.type)), fill_value=False)
            others = column.filter(pc.invert(gone)).drop_null()
            if not len(others):
                return {name: column}
            drawn = others.take(pa.array(target.ranks % len(others)))
            return {name: _replaced(target.rows, name, pc.and_(gone, target.reached(size)), drawn)}

        yield Fault("vanished", (name,), f"{{size}} of {shown!r} become other values", SHARE, vanished)
    texts = [_text(value) for value in counts.field(0).to_pylist()]
    for fault, change in _CHANGED.items():
        if any(change(text) != text for text in texts):
            yield of(fault, _WORDS[fault], lambda target, change=change: _each(target.rows[name], change))


def _text(value: Any) -> str:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else value


def _each(column: Any, change: Callable[[str], str]) -> pa.Array:
    """Returns texts that are changed value by value."""
    values = pc.unique(column).to_pylist()
    changed = [None if value is None else change(_text(value)) for value in values]
    bytes_of = [None if text is None else text.encode(errors="surrogateescape") for text in changed]
    places = pc.index_in(column, value_set=pa.array(values, column.type))
    return pa.array(bytes_of, pa.binary()).cast(column.type, safe=False).take(places)


def _cents(column: Any) -> Any:
    return pc.multiply(column.cast(pa.float64()), _CENTS)


def _as_numbers(column: Any, values: Any) -> Any:
    """Returns floats as numbers like those of a column: whole ones if these are."""
    return values.cast(column.type) if pa.types.is_floating(column.type) else pc.round(values).cast(pa.int64())


def _taken(target: Target, size: float, names: Sequence[str]) -> Columns:
    reached = target.reached(size)
    return {name: _replaced(target.rows, name, reached, target.earlier[name]) for name in names}


def _replaced(rows: pa.Table, name: str, reached: pa.Array, values: Any) -> pa.Array:
    """Returns a column with other values in some rows."""
    column = rows[name].combine_chunks()
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        value = values.as_py() if isinstance(values, pa.Scalar) else values
        values = pa.repeat(pa.scalar(value, column.type), len(column))
    elif values.type != column.type:
        column = column.cast(values.type) if pa.types.is_integer(column.type) else column
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    try:
        return pc.if_else(reached, values.cast(column.type), column)
    except pa.ArrowNotImplementedError:  # lists
        rows_of = np.where(reached.to_numpy(zero_copy_only=False), len(column), 0) + np.arange(len(column))
        return pa.concat_arrays([column, values.cast(column.type)]).take(pa.array(rows_of))
