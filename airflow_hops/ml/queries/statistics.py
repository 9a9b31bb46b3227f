"""Statistics as numbers for the pages: features in columns, one feature in full, and distances of two data sets.

A *data set* is a split of a ``statistics`` artifact, whole or a slice, or a side (``reference``, ``current``) of a
``skew`` artifact. Numbers are rounded to visible digits; a number that JSON lacks is null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2

from airflow_hops.core.contract.artifacts import BadInput, read_json
from airflow_hops.core.contract.skew import SkewTest
from airflow_hops.ml.monitoring.skew.detect import comparable_features, compare_sides
from airflow_hops.ml.monitoring.skew.sides import Side
from airflow_hops.ml.queries.feature_figures import detail, table
from airflow_hops.ml.queries.place import Place
from airflow_hops.ml.statistics.files import STATISTICS_FILE, load_statistics
from airflow_hops.ml.statistics.sample import load_sample
from airflow_hops.ml.statistics.summary import feature_name, features_by_name, vector_width

__all__ = ["datasets", "distances", "feature", "features"]
_SIDES = ("reference", "current")
_REPORT, _REPORT_PROTO = "report.json", "report.pb"
_PARSED = 6
"""Number of parsed files of statistics in the cache."""
_COMPARED_ROWS = 5_000
"""Rows of a sample that a page compares, so that it need not wait; a report compares all."""


def datasets(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the data sets of ``artifact``, of kind ``statistics`` or ``skew``.

    Returns:
        ``datasets``: each with ``name``, ``rows``, ``weighted_rows`` (null without weights), ``features`` (their
        number) and ``slices``: rows by key.
    """
    results = []
    for name in _names(place, params["artifact"]):
        whole, *slices = _load(place, params["artifact"], name)
        results.append(
            {
                "name": name,
                "rows": int(whole.num_examples),
                "weighted_rows": whole.weighted_num_examples or None,
                "features": len(whole.features),
                "slices": {each.name: int(each.num_examples) for each in slices},
            }
        )
    return {"datasets": results}


def features(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the features of a data set in columns (:class:`airflow_hops.web.artifacts.statistics.FeatureTable`).

    Args:
        place: Store of the artifact.
        params: ``artifact``; ``dataset``, its name; ``slice``, the slice's key, or null for the whole; ``weighted``,
            whether to return weights instead of counts.

    Raises:
        BadInput: the data set or slice does not exist, or it has no weights.
    """
    dataset = _dataset(place, params)
    sample = _vectors(place, params, dataset.features)
    return table(dataset, weighted=bool(params.get("weighted")), sample=sample)


def feature(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all figures of a feature of a data set (:class:`airflow_hops.web.artifacts.statistics.FeatureDetail`).

    Args:
        place: Store of the artifact.
        params: As for :func:`features`, and ``feature``, its name.

    Raises:
        BadInput: as for :func:`features`, or the feature does not exist.
    """
    dataset = _dataset(place, params)
    for each in dataset.features:
        if feature_name(each) == params["feature"]:
            sample = _vectors(place, params, [each])
            weighted = bool(params.get("weighted"))
            return detail(each, int(dataset.num_examples), weighted=weighted, sample=sample)
    raise BadInput(f"feature is {params['feature']!r}, expected one of the {len(dataset.features)} features")


def distances(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns distances of the features of two data sets (:class:`airflow_hops.web.artifacts.statistics.Distances`).

    For the two sides of a skew report they come from the report; otherwise, and for features that the report does not
    judge, from the rows of both samples or, without samples, TFDV's measures.

    Args:
        place: Store of the artifacts.
        params: ``reference`` and ``current``, each with ``artifact``, ``dataset`` and ``slice``; ``feature``, to return
            all its measures, or null.

    Raises:
        BadInput: the data set or slice does not exist.
    """
    sides = [params[side] for side in _SIDES]
    judged: Mapping[str, Any] = {}
    artifacts = [side["artifact"] for side in sides]
    is_report = artifacts[0]["kind"] == "skew" and artifacts[0]["fingerprint"] == artifacts[1]["fingerprint"]
    if is_report and [side["dataset"] for side in sides] == [*_SIDES]:
        judged = read_json(place.folder(artifacts[0]) / _REPORT)["features"]
    name = params.get("feature")
    return compare(*(_side(place, side) for side in sides), judged=judged, name=name)


def compare(reference: Side, current: Side, *, judged: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """Returns the distances of the features that both sides have.

    Args:
        reference: One side.
        current: The other side.
        judged: Entries of a skew report by feature, which are returned as they are.
        name: A feature whose measures are all returned; None for one measure of each feature.
    """
    sides = [features_by_name(side.statistics) for side in (reference, current)]
    shared = [each for each in sides[0] if each in sides[1] and name in (None, each)]
    schema = schema_pb2.Schema()
    for each in comparable_features(reference, current):
        if each in shared and each not in judged:
            schema.feature.add(name=each).drift_comparator.SetInParent()
    judgements = dict(judged)
    if schema.feature:
        report = compare_sides(reference, current, schema, SkewTest(comparator="drift"))
        judgements |= {each: vars(skew) for each, skew in report.features.items()}
    columns = {"measures": "measure", "scores": "score", "thresholds": "threshold", "p_values": "p_value"}
    named = {
        column: [judgements[each][field] if each in judgements else None for each in shared]
        for column, field in (columns | {"drifted": "drifted"}).items()
    }
    every = {}
    if name in judgements:
        every = {judgements[name]["measure"]: judgements[name]["score"], **judgements[name]["scores"]}
    return {"names": shared, **named, "reported": bool(judged), "every": every}


def _names(place: Place, artifact: Mapping[str, Any]) -> list[str]:
    """Returns the data sets of an artifact: the sides of a comparison, or the splits in order of creation."""
    folder = place.folder(artifact)
    if artifact["kind"] == "skew":
        return [each.name for each in _parse(folder / _REPORT_PROTO, artifact["fingerprint"])]
    there = sorted(path.parent.relative_to(folder).as_posix() for path in folder.rglob(STATISTICS_FILE))
    names = [name for name in artifact.get("properties", {}).get("splits") or [] if name in there]
    return [*names, *(name for name in there if name not in names)]


def _dataset(place: Place, params: Mapping[str, Any]) -> Any:
    whole, *slices = _load(place, params["artifact"], params["dataset"])
    if params.get("slice") is None:
        return whole
    for each in slices:
        if each.name == params["slice"]:
            return each
    raise BadInput(f"slice is {params['slice']!r}, expected one of the {len(slices)} slices of {params['dataset']!r}")


def _side(place: Place, params: Mapping[str, Any]) -> Side:
    """Returns a data set as one side of a comparison."""
    statistics = statistics_pb2.DatasetFeatureStatisticsList(datasets=[_dataset(place, params)])
    sample = _sample(place, params)
    return Side(statistics, None if sample is None else sample.slice(0, _COMPARED_ROWS))


def _sample(place: Place, params: Mapping[str, Any], columns: Sequence[str] | None = None) -> Any:
    """Returns the sample of a data set's rows; slices, and sides of a skew report, have none."""
    if params.get("slice") is not None or params["artifact"]["kind"] == "skew":
        return None
    return load_sample(place.folder(params["artifact"]) / params["dataset"], columns)


def _vectors(place: Place, params: Mapping[str, Any], features: Iterable[Any]) -> Any:
    """Returns the sample of those features that are vectors; None if there is none."""
    vectors = [feature_name(each) for each in features if vector_width(each)]
    return _sample(place, params, vectors) if vectors else None


def _load(place: Place, artifact: Mapping[str, Any], name: str) -> list[Any]:
    names = _names(place, artifact)
    if name not in names:
        raise BadInput(f"dataset is {name!r}, expected one of {', '.join(names) or 'none: there are no statistics'}")
    folder = place.folder(artifact)
    if artifact["kind"] == "skew":
        both = _parse(folder / _REPORT_PROTO, artifact["fingerprint"])
        return [each for each in both if each.name == name][:1]
    return list(_parse(folder / name / STATISTICS_FILE, artifact["fingerprint"]))


@lru_cache(_PARSED)
def _parse(path: Path, fingerprint: str) -> Any:
    """Parses a file of statistics; the artifact's fingerprint is part of the cache key."""
    return load_statistics(path).datasets
