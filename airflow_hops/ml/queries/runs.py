"""Runs of MLflow: a search, one run with its metrics, and curves of metrics.

An experiment has its DAG's name. A run belongs to a DAG by its tag ``hops.dag_id``: other runs in an experiment of that
name are ignored.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.redaction import masked
from airflow_hops.ml.queries.place import Place
from airflow_hops.ml.tracking.client import mlflow_errors, open_tracking

__all__ = ["curves", "get", "search", "tags"]
_SQLITE = "sqlite:///"
_PAGE = 100
_MAX_SORTED = 10_000
_CURVE_POINTS = 1000
_OWN_ORDER = ("duration", "params.")
_PARENT_TAG = "mlflow.parentRunId"
_opening = threading.Lock()


def search(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns runs of a DAG.

    Args:
        place: Tracking server.
        params: ``experiment`` (its name: the DAG's id), ``filter`` (MLflow's search syntax), ``order_by`` (a list of
            ``metrics.auc DESC`` and the like; ``duration`` or ``params.…`` alone are sorted here: MLflow does not know
            the former, and sorts the latter as text), ``max_results`` and ``page_token``, as in MLflow.

    Returns:
        ``runs``, each with ``run_id``, ``name``, ``status``, ``start_time`` and ``end_time`` (milliseconds since the
        epoch), ``params``, ``metrics`` (the last value of each), ``tags``, ``parent`` (id of the run that it is nested
        in) and ``versions`` (of models: ``name``, ``version``); ``next_page_token``, null on the last page.

    Raises:
        BadInput: MLflow cannot parse the filter (the message names the position), the order or the token.
        HopsError: MLflow does not answer.
    """
    client = tracking(place)
    none: dict[str, Any] = {"runs": [], "next_page_token": None}
    if client is None:
        return none
    with mlflow_errors(client):
        experiment = client.get_experiment_by_name(params["experiment"])
        if experiment is None:
            return none
        page, token = _page(client, experiment, params)
        versions = _versions(client, [run.info.run_id for run in page])
    return {
        "runs": [{**_run(run), "versions": versions.get(run.info.run_id, [])} for run in page],
        "next_page_token": token,
    }


def get(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all of MLflow's data on run ``run_id`` of ``experiment``.

    Returns:
        The fields of a run in :func:`search`, and ``figures`` (by metric, its ``last``, ``min`` and ``max``, each with
        ``value`` and ``step``, and ``count``), ``datasets`` (``name``, ``digest``, ``context``, ``rows``), ``children``
        (runs nested in it).

    Raises:
        FileNotFoundError: the DAG has no run with this ID, or it was deleted.
    """
    client, run = find_run(place, params)
    with mlflow_errors(client):
        run_id = run.info.run_id
        nested = client.search_runs([run.info.experiment_id], f"tags.`{_PARENT_TAG}` = '{run_id}'", max_results=_PAGE)
        return {
            **_run(run),
            "versions": _versions(client, [run_id]).get(run_id, []),
            "figures": {name: _figures(client.get_metric_history(run_id, name)) for name in sorted(run.data.metrics)},
            "datasets": [_dataset(each) for each in run.inputs.dataset_inputs] if run.inputs else [],
            "children": [_run(each) for each in nested],
        }


def tags(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the ``tags`` of run ``run_id`` of ``experiment``.

    Raises:
        FileNotFoundError: the DAG has no run with this ID, or it was deleted.
    """
    return {"tags": masked(find_run(place, params)[1].data.tags)}


def curves(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the history of a run's metrics.

    Args:
        place: Tracking server.
        params: ``experiment``, ``run_id``, ``metrics`` (names; null for all).

    Returns:
        ``curves``, each with ``run_id``, ``metric``, ``steps``, ``values`` (null if not finite), ``times``
        (milliseconds since the epoch), ``points`` (their total number: of more than a thousand, those that show the
        curve's shape are returned).

    Raises:
        FileNotFoundError: the DAG has no run with this ID, or it was deleted.
    """
    client, run = find_run(place, params)
    wanted = params["metrics"]
    names = sorted(name for name in run.data.metrics if wanted is None or name in wanted)
    with mlflow_errors(client):
        results = []
        for name in names:
            points = client.get_metric_history(run.info.run_id, name)
            shown = _thin(sorted(points, key=lambda metric: (metric.step, metric.timestamp)), _CURVE_POINTS)
            columns = [[getattr(each, column) for each in shown] for column in ("step", "value", "timestamp")]
            curve = dict(zip(("steps", "values", "times"), columns, strict=True))
            results.append({"run_id": run.info.run_id, "metric": name, "points": len(points), **curve})
    return {"curves": results}


def find_run(place: Place, params: Mapping[str, Any]) -> tuple[Any, Any]:
    """Returns MLflow's client, and a run of a DAG.

    Raises:
        FileNotFoundError: the DAG has no run with this ID, or it was deleted.
    """
    from mlflow.exceptions import MlflowException

    run_id, client = params["run_id"], tracking(place)
    missing = FileNotFoundError(f"MLflow's run {run_id} of {params['experiment']}")
    if client is None:
        raise missing
    with mlflow_errors(client):
        try:
            run = client.get_run(run_id)
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise missing from error
            raise
        experiment = client.get_experiment(run.info.experiment_id)
    is_own = experiment.name == params["experiment"] == run.data.tags.get("hops.dag_id")
    if not is_own or run.info.lifecycle_stage != "active":
        raise missing
    return client, run


def tracking(place: Place) -> Any:
    """Returns MLflow's client; None if its database does not exist yet, since a query does not create it."""
    uri = place.tracking_uri
    if uri.startswith(_SQLITE) and not Path(uri.removeprefix(_SQLITE).partition("?")[0]).exists():
        return None
    with _opening:
        return _open(uri)


_open = cache(open_tracking)


def _page(client: Any, experiment: Any, params: Mapping[str, Any]) -> tuple[Sequence[Any], str | None]:
    own = f"tags.`hops.dag_id` = '{params['experiment']}'"
    values = (params.get("filter") or "").strip()
    query = f"{own} AND {values}" if values else own
    order, limit = list(params.get("order_by") or []), int(params.get("max_results") or _PAGE)
    token = params.get("page_token")
    if len(order) == 1 and order[0].startswith(_OWN_ORDER):
        runs = _sorted_here(client, experiment.experiment_id, query, order[0], values)
        if token is not None and not str(token).isdecimal():
            raise BadInput(f"page_token is {token!r}; expected the next_page_token of an earlier answer")
        first = int(token or 0)
        return runs[first : first + limit], str(first + limit) if first + limit < len(runs) else None
    page = _found(client, experiment.experiment_id, query, values, order, limit, token)
    token = page.token.decode() if isinstance(page.token, bytes) else page.token
    return page, token or None


def _found(client: Any, experiment_id: str, query: str, values: str, order: list[str], limit: int, token: Any) -> Any:
    from mlflow.exceptions import MlflowException

    try:
        return client.search_runs([experiment_id], query, order_by=order, max_results=limit, page_token=token)
    except MlflowException as error:
        if error.error_code != "INVALID_PARAMETER_VALUE":
            raise
        for position, comparison in _comparisons(values):
            try:
                client.search_runs([experiment_id], comparison, max_results=1)
            except MlflowException as why:
                raise BadInput(f"filter, character {position + 1}: {why.message}") from error
        raise BadInput(f"filter {values!r}, order {order!r}: {error.message}") from error


def _comparisons(text: str) -> Iterator[tuple[int, str]]:
    """Yields the comparisons in a filter, each with its position: MLflow's errors rarely contain the position."""
    import sqlparse  # MLflow parses filters with it

    first = end = 0
    for token in (token for statement in sqlparse.parse(text) for token in statement.tokens):
        if token.is_keyword and token.normalized in ("AND", "OR"):
            yield first, text[first:end]
            first = end + len(str(token)) + 1  # and the following blank
        end += len(str(token))
    yield first, text[first:]


def _sorted_here(client: Any, experiment_id: str, query: str, order: str, arguments: str) -> list[Any]:
    """Returns all runs that match a filter, in an order that MLflow does not support."""
    runs: list[Any] = []
    token: Any = None
    while len(runs) < _MAX_SORTED:
        page = _found(client, experiment_id, query, arguments, [], 1000, token)
        runs += page
        token = page.token
        if not token:
            break
    name, _, direction = order.rpartition(" ") if order.upper().endswith((" ASC", " DESC")) else (order, "", "ASC")
    values = {
        run.info.run_id: (run.info.end_time - run.info.start_time if run.info.end_time else None)
        if name == "duration"
        else run.data.params.get(name.removeprefix("params.").strip("`"))
        for run in runs
    }
    absent = [run for run in runs if values[run.info.run_id] is None]
    present = [run for run in runs if values[run.info.run_id] is not None]
    present.sort(key=lambda run: _natural_key(values[run.info.run_id]), reverse=direction.upper() == "DESC")
    return [*present, *absent]


def _versions(client: Any, run_ids: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    named = ", ".join(f"'{run_id}'" for run_id in run_ids)
    results: dict[str, list[dict[str, Any]]] = {}
    if named:
        for version in client.search_model_versions(f"run_id IN ({named})", max_results=1000):
            results.setdefault(version.run_id, []).append({"name": version.name, "version": int(version.version)})
    return results


def _dataset(values: Any) -> dict[str, Any]:
    context = next((tag.value for tag in values.tags if tag.key == "mlflow.data.context"), None)
    try:
        rows = json.loads(values.dataset.profile or "{}").get("num_rows")
    except ValueError:
        rows = None
    return {"name": values.dataset.name, "digest": values.dataset.digest, "context": context, "rows": rows}


def _run(run: Any) -> dict[str, Any]:
    info = run.info
    return {
        "run_id": info.run_id,
        "name": info.run_name,
        "status": info.status,
        "start_time": info.start_time,
        "end_time": info.end_time,
        "params": masked(run.data.params),
        "metrics": dict(run.data.metrics),
        "tags": masked(run.data.tags),
        "parent": run.data.tags.get(_PARENT_TAG),
    }


def _figures(history: Sequence[Any]) -> dict[str, Any]:
    """Returns the last, smallest and largest value of MLflow's ``Metric``s, each with its step, and their ``count``.

    Values that are not finite are never smallest or largest.
    """
    ordered = sorted(history, key=lambda metric: (metric.step, metric.timestamp))
    numbers = [metric for metric in ordered if math.isfinite(metric.value)]

    def point(metric: Any) -> dict[str, Any]:
        return {"value": metric.value, "step": metric.step}

    return {
        "last": point(ordered[-1]),
        "min": point(min(numbers, key=lambda metric: metric.value)) if numbers else None,
        "max": point(max(numbers, key=lambda metric: metric.value)) if numbers else None,
        "count": len(ordered),
    }


def _thin(history: Sequence[Any], most: int) -> list[Any]:
    """Returns at most ``most`` points of a series, in order: smallest and largest of each stretch, and both ends."""
    if len(history) <= most:
        return list(history)
    stretch = math.ceil(2 * len(history) / (most - 2))
    retained = {0, len(history) - 1}
    for first in range(0, len(history), stretch):
        part = [i for i in range(first, min(first + stretch, len(history))) if math.isfinite(history[i].value)]
        if part:
            retained |= {min(part, key=lambda i: history[i].value), max(part, key=lambda i: history[i].value)}
    return [history[index] for index in sorted(retained)]


def _natural_key(value: Any) -> tuple[Any, ...]:
    """Returns a sort key: numbers by value and before words, and numbers within words by value, too."""
    try:
        number = float(value)
        if number == number:
            return (0, number)
    except (TypeError, ValueError):
        pass
    # Numbers of any length are compared by their digits; words come before numbers.
    parts = ((part, part.lstrip("0")) for part in re.split(r"(\d+)", str(value).casefold()))
    return (1, [(len(digits), digits) if part.isdecimal() else (-1, part) for part, digits in parts])
