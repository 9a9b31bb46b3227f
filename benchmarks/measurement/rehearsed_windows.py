"""Rehearses tables of shaped columns, and plants the same faults into new windows of the same population.

Runs in the runtime environment: ``python -m benchmarks.measurement.rehearsed_windows OPTIONS``, JSON of
:mod:`benchmarks.rehearsal`; prints a line of JSON for each table.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_hops.core.skew import SkewOptions, SkewReference
from airflow_hops.extensions.rehearsal.ml.faults import faults_of
from airflow_hops.extensions.rehearsal.ml.search import FaultFound, Rehearsing
from airflow_hops.extensions.rehearsal.ml.windows import RowsWindow, WindowPool
from airflow_hops.ml.distances.sides import Side
from airflow_hops.ml.schema import infer_schema
from airflow_hops.ml.schema.comparators import compared_features
from airflow_hops.ml.skew.trained import Trained
from airflow_hops.ml.spark.pools import fork_parts
from airflow_hops.ml.statistics import comparable_options
from airflow_hops.ml.statistics.generate import collect_statistics
from airflow_hops.ml.statistics.summary import features_by_name, type_name
from benchmarks.measurement.drift_shapes import SHAPES

REFERENCE_ROWS = 20_000
_POWER = 0.75
"""Power of the size at which predicted and real power are compared, or the nearest."""
_LEFT_OUT = ("dates in seconds", "vectors of 8")
"""A time is no feature; each comparison of vectors takes a second."""


class Population:
    """Rows of some shapes; with a rhythm, two of the columns depend on the day of the week.

    Args:
        seed: Which shapes, and which rows.
        features: Number of columns.
        rhythm: By how many standard deviations two columns of numbers are moved on two days of seven.
    """

    def __init__(self, seed: int, features: int, rhythm: float = 0.0) -> None:
        self.seed, self.rhythm = seed, rhythm
        names = [name for name in SHAPES if name not in _LEFT_OUT]
        self.names = list(np.random.default_rng(seed).choice(names, min(features, len(names)), replace=False))
        self.names += [names[number % len(names)] for number in range(features - len(self.names))]

    def draw(self, number: int, rows: int, day: int | None = None) -> pa.Table:
        """Draws rows of a day; of all days if None."""
        random = np.random.default_rng([self.seed, number])
        days = random.integers(0, 7, rows) if day is None else np.full(rows, day % 7)
        columns = {}
        for place, name in enumerate(self.names):
            column = SHAPES[name].column(random, rows)
            if self.rhythm and place < 2 and pa.types.is_floating(column.type):
                values = column.to_numpy(zero_copy_only=False)
                spread = np.subtract(*np.nanquantile(values, [0.75, 0.25])) / 1.349
                column = pa.array(values + self.rhythm * spread * (days > 4), from_pandas=True)
            columns[f"{name} {place}"] = column
        return pa.table(columns)


def trained_on(table: pa.Table) -> Trained:
    """Returns a model's training data without a model."""
    collected = collect_statistics(table, options=comparable_options())
    schema = infer_schema(collected.statistics)
    known = features_by_name(collected.statistics)
    types = {name: type_name(known[name]) for name in compared_features(schema, "skew")}
    reference = Side(collected.statistics, collected.sample)
    return Trained(None, "train", None, SkewReference("", "", None, "m", 1), reference, schema, types)  # type: ignore[arg-type]


def pool_of(population: Population, first: int, windows: int, rows: int) -> WindowPool:
    """Draws windows, a day each."""
    drawn = [population.draw(1_000 + first + day, rows, day) for day in range(windows)]
    statistics = collect_statistics(drawn[0], options=comparable_options()).statistics
    return WindowPool("captured", 86_400.0, tuple(RowsWindow(rows, each) for each in drawn), statistics)


def proof(options: dict[str, Any], number: int) -> dict[str, Any]:
    """Returns predicted and real shares of windows in which faults are found, and of false alarms."""
    population = Population(number, options["features"], options["rhythm"] if number % 3 == 0 else 0.0)
    trained = trained_on(population.draw(0, REFERENCE_ROWS))
    skew = SkewOptions(model_name="m")
    pool = pool_of(population, 0, options["windows"], options["rows"])
    rehearsing = Rehearsing(trained, pool, skew, options["tries"])
    faults = faults_of(rehearsing.reference, rehearsing.names)
    chosen = np.random.default_rng(number).permutation(len(faults))[: options["faults"]]
    searched = rehearsing.search([faults[place] for place in sorted(chosen)], lambda share: None)
    new = pool_of(population, 500, max(options["real"], options["unchanged"]), options["rows"])
    real = Rehearsing(trained, new, skew, len(new.windows))
    places = [None if each.smallest()[0] is None else _place_of(each) for each in searched]

    def share(place: int) -> Any:
        each, at_size = searched[place], places[place]
        if at_size is None:
            return None
        size = each.fault.sizes[at_size]
        hits = [bool(real.decided(each.fault, one, size)) for one in real.tries[: options["real"]]]
        return {
            "fault": f"{each.fault.features[0]}: {each.fault.kind}", "size": size,
            "predicted": each.curve()[at_size].power, "real": float(np.mean(hits)),
        }  # fmt: skip

    cells = fork_parts(real.processes, share, list(range(len(searched))), lambda ended: None)
    sides = rehearsing.tries[: options["windows"]], real.tries[: options["unchanged"]]
    alarms = [float(np.mean([bool(one.drifted) for one in each])) for each in sides]
    cells = [cell for cell in cells if cell]
    return {"table": number, "cells": cells, "false_alarms": alarms, "not_found": places.count(None)}


def _place_of(found: FaultFound) -> int:
    shares = [abs(each.power[0] - _POWER) for each in found.curve()]
    return shares.index(min(shares))


def speed(options: dict[str, Any]) -> dict[str, Any]:
    """Returns seconds and memory of a search over all faults of many features."""
    population = Population(1, options["wide"])
    trained = trained_on(population.draw(0, REFERENCE_ROWS))
    pool = pool_of(population, 0, 14, 20_000)
    began = time.monotonic()
    rehearsing = Rehearsing(trained, pool, SkewOptions(model_name="m"), 14)
    faults = faults_of(rehearsing.reference, rehearsing.names)
    rehearsing.search(faults, lambda share: print(json.dumps({"progress": share}), file=sys.stderr))
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "wall_s": round(time.monotonic() - began, 1), "faults": len(faults),
        "cpu_s": round(sum(each.ru_utime + each.ru_stime for each in usage), 1),
        "peak_mb": round(max(each.ru_maxrss for each in usage) / 1024),
    }  # fmt: skip


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    for table in range(asked["tables"]):
        print(json.dumps(proof(asked, table)), flush=True)
    if asked["wide"]:
        print(json.dumps({"speed": speed(asked)}), flush=True)
