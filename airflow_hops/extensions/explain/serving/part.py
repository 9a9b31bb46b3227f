"""A part of the model server that explains predictions: ``POST /v1/models/MODEL:explain``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_hops.serving import flag_values
from airflow_hops.serving.access import Right
from airflow_hops.serving.flags import Flags, flag
from airflow_hops.serving.parts import Counted, ServerPart

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from airflow_hops.serving.models.catalog import Catalog
    from airflow_hops.serving.routes import Routes


@dataclass(frozen=True)
class ExplainFlags:
    """Explanations of predictions."""

    explain_background_path: str = flag(
        "",
        "folder with MODEL.parquet for each model, rows that its predictions are compared with (such as the file "
        "sample.parquet of the statistics of its training data); enables POST /v1/models/MODEL:explain",
    )
    explain_background_rows: int = flag(
        100, "rows of the background, a uniform sample (default 100)", flag_values.positive
    )
    explain_max_predictions: int = flag(
        1_000_000, "predictions that one request for explanations may need (default 1000000)", flag_values.positive
    )


class ExplainPart(ServerPart):
    """Explains predictions, one request at a time."""

    flags = ExplainFlags

    def reports(
        self, flags: Flags, routes: Routes, catalog: Catalog, counted: Counted, registry: CollectorRegistry
    ) -> None:
        """Adds the route, if there are backgrounds."""
        own = flags.of(ExplainFlags)
        if own.explain_background_path:
            from airflow_hops.extensions.explain.serving.explanations import Explanations

            route = "POST /v1/models/MODEL[/versions/N|/labels/L]:explain"
            bounds = own.explain_background_rows, own.explain_max_predictions
            explanations = Explanations(catalog, Path(own.explain_background_path), *bounds)
            routes.add(route, explanations.answer, right=Right.PREDICT)
