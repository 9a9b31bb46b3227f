"""Reads the figures of features that steps wrote for the pages: ``<data set>/page.jsonl`` of an artifact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastapi import HTTPException
from pydantic_core import from_json

from airflow_hops.core.artifacts.page_files import PAGE_FILE, PageIndex
from airflow_hops.web.artifacts.lookup import FoundArtifact

_STATISTICS_FILE, _SKEW_FILE = "/FeatureStats.pb", "report.pb"
_SIDES = ("reference", "current")


@dataclass(frozen=True)
class FeatureView:
    """Features of a data set, whole or a slice of it, counted or weighted.

    Attributes:
        rows: Rows of the data set.
        table: JSON of the :class:`~airflow_hops.core.artifacts.page_files.FeatureTable`.
        details: JSON of the :class:`~airflow_hops.core.artifacts.page_files.FeatureDetail` of each feature.
    """

    rows: int
    table: str
    details: Mapping[str, str]

    def detail(self, feature: str) -> str:
        """Returns the details of a feature. Raises HTTPException (422) if there is none of this name."""
        if feature not in self.details:
            raise HTTPException(422, f"feature is {feature!r}, expected one of the {len(self.details)} features")
        return self.details[feature]


@dataclass(frozen=True)
class FeaturePage:
    """The figures of a data set."""

    dataset: str
    index: PageIndex
    lines: Sequence[str]

    @staticmethod
    def exists(found: FoundArtifact, dataset: str) -> bool:
        """Returns whether a step wrote figures of the data set for the pages."""
        return found.has(f"{dataset}/{PAGE_FILE}")

    @classmethod
    def read(cls, found: FoundArtifact, dataset: str) -> FeaturePage:
        """Reads the figures of a data set.

        Raises:
            HTTPException: 409, the step wrote none, being older; 422, the data set does not exist; 502, the file is
                damaged.
        """
        names = dataset_names(found)
        if dataset not in names:
            listed = ", ".join(names) or "none: there are no statistics"
            raise HTTPException(422, f"dataset is {dataset!r}, expected one of {listed}")
        if not cls.exists(found, dataset):
            raise HTTPException(409, found.without_page())
        path = f"{dataset}/{PAGE_FILE}"
        lines = found.read_text(path).split("\n")
        with found.reading(path):
            index = PageIndex.from_dict(from_json(lines[0]))
            if any(view.line + len(index.features) >= len(lines) for view in index.views):
                raise TypeError("lines are missing")
        return cls(dataset, index, lines)

    def view(self, slice: str | None, weighted: bool) -> FeatureView:
        """Returns the features of a slice, or of the whole data set.

        Raises:
            HTTPException: 422, the slice does not exist, or the statistics have no weights.
        """
        index = self.index
        if slice is not None and slice not in index.slices:
            raise HTTPException(
                422, f"slice is {slice!r}, expected one of the {len(index.slices)} slices of {self.dataset!r}"
            )
        for view in index.views:
            if (view.slice, view.weighted) == (slice, weighted):
                table, *details = self.lines[view.line : view.line + 1 + len(index.features)]
                rows = index.rows if slice is None else index.slices[slice]
                return FeatureView(rows, table, dict(zip(index.features, details, strict=True)))
        raise HTTPException(422, "weighted is true, and these statistics have no weights")


def dataset_names(found: FoundArtifact) -> list[str]:
    """Returns the data sets of an artifact: the sides of a comparison, or the splits in order of creation."""
    paths = [entry.path for entry in found.manifest.files]
    if found.artifact.kind == "skew":
        sides = [side for side in _SIDES if f"{side}/{PAGE_FILE}" in paths]
        return sides or (list(_SIDES) if _SKEW_FILE in paths else [])
    there = {path.removesuffix(_STATISTICS_FILE) for path in paths if path.endswith(_STATISTICS_FILE)}
    splits = [name for name in found.artifact.properties.get("splits") or [] if name in there]
    return [*splits, *sorted(there.difference(splits))]
