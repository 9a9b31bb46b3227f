"""The card of a model's version, in the parts of Mitchell et al. (2019), "Model Cards for Model Reporting".

What people have to say comes from the documentation of the DAG that made it (``doc_md``) and from the model's note;
the rest is what the artifacts, the registry and the model's record know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Annotated, Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.utils.session import create_session
from fastapi import APIRouter, HTTPException
from fastapi.params import Path as PathParameter
from fastapi.responses import HTMLResponse

from airflow_hops.api.access import READS_ARTIFACTS, READS_RUNS, MayRead, ReadableDags
from airflow_hops.api.artifacts.lookup import open_artifact, pipeline_of
from airflow_hops.api.lineage.walk import open_one
from airflow_hops.api.models.evaluations import (
    Evaluation,
    SliceFigures,
    SplitEvaluation,
    find_evaluation,
    registry_tags,
)
from airflow_hops.api.models.history import Decision
from airflow_hops.api.models.lookup import Served, ServedModelOf
from airflow_hops.api.models.records import read_model_record
from airflow_hops.api.models.routes import RegisteredVersion, get_model, list_model_versions
from airflow_hops.api.reports.page import Chart, Section, Table, draw_lines, send_report
from airflow_hops.api.skew.routes import get_skew_timeline
from airflow_hops.contract.artifacts import Artifact, Manifest
from airflow_hops.contract.properties import ModelProperties

router = APIRouter(prefix="/api/dags/{dag_id}/models/{model}/versions/{version}", tags=["reports"])
_NOT_FIGURES = ("rows", "weight")
_CLASSES = 50
_CHECKS = 20


@router.get("/card", response_class=HTMLResponse, dependencies=[READS_ARTIFACTS, READS_RUNS])
def report_model_version(
    user: GetUserDep, served: Served, readable: ReadableDags, version: Annotated[int, PathParameter(ge=1)]
) -> HTMLResponse:
    """The model card of a version; one HTML file to keep or send.

    Raises:
        HTTPException: 404, the version does not exist.
    """
    known = {each.version: each for each in list_model_versions(user, served).versions}
    if version not in known:
        raise HTTPException(404, f"model {served.name!r} has no version {version}; it has {sorted(known) or 'none'}")
    registered, notes = known[version], list[str]()
    allowed = MayRead(user, DagAccessEntity.XCOM)
    found = _artifact(served, registered, allowed, notes)
    evaluation = None
    try:
        evaluation = find_evaluation(user, served, version)
    except HTTPException as error:
        notes.append(f"No evaluation: {error.detail}.")
    decisions = [each for each in get_model(user, served).decisions if version in (each.version, each.to)]
    sections = [
        Section("Model details", [_details(served, registered, found)]),
        Section("Intended use", _intended_use(served, registered, found)),
        *(_factors(found[0]) if found else []),
        *(_evaluation(evaluation) if evaluation else []),
        *(_training(*found, _lineage(served, found[1], allowed, notes)) if found else []),
        _skew(user, served, readable, version, notes),
        Section("What was decided", [_decisions(decisions)] if decisions else []),
        Section("Caveats", _caveats(evaluation, notes)),
    ]
    return send_report(f"{served.name} v{version} model card", f"Model of DAG {served.dag_id}", sections)


def _artifact(
    served: ServedModelOf, registered: RegisteredVersion, allowed: MayRead, notes: list[str]
) -> tuple[ModelProperties, Manifest] | None:
    """The model's artifact, where the user may read both the DAG that deployed it and the one that trained it."""
    if registered.made_by is None:
        notes.append(
            "The run that made it is unknown, or the reader has no permission to see it: data and lineage are left out."
        )
        return None
    serving = read_model_record(served.hook.store, served.name).served(registered.version)
    tags = registry_tags(served, registered.version) if serving is None else {}
    given = serving.model if serving else Artifact(tags.get("hops.model", ""), "model", registered.fingerprint or "")
    try:
        artifact, manifest = open_artifact(served.hook.store, given)
    except HTTPException as error:
        notes.append(f"The model's artifact cannot be read: {error.detail}.")
        return None
    if manifest.producer.dag_id not in allowed:
        notes.append(
            "The reader has no permission to see the DAG that trained it: features, data and lineage are left out."
        )
        return None
    return ModelProperties.of(manifest.reference(artifact.uri)), manifest


def _lineage(
    served: ServedModelOf, manifest: Manifest, allowed: MayRead, notes: list[str]
) -> list[tuple[str, str, str, str]]:
    """What the model was made from, as far as the user may know it."""
    store = served.hook.store
    own = f"{store.uri(manifest.producer.dag_id)}/"
    rows, hidden = [], 0
    for role, items in manifest.inputs.items():
        for given in items:
            source = open_one(store, given).manifest
            if source.producer.dag_id in allowed if source else given.uri.startswith(own):
                rows.append((role, given.kind, given.uri, given.fingerprint))
            else:
                hidden += 1
    if hidden:
        notes.append(f"The lineage leaves out {hidden} inputs: of DAGs that the reader may not see, or gone.")
    return rows


def _details(
    served: ServedModelOf, registered: RegisteredVersion, found: tuple[ModelProperties, Manifest] | None
) -> Table:
    of, manifest = found or (ModelProperties(), None)
    return Table.of(
        {
            "Model": served.name,
            "Version": registered.version,
            "Role": registered.role,
            "Registered": registered.created_at,
            "Trained": manifest.created_at if manifest else None,
            "Made by": f"DAG {registered.made_by.dag_id}, run {registered.made_by.run_id}"
            if registered.made_by
            else None,
            "Predicts": of.problem,
            "Label": of.label,
            "Framework": of.framework,
            "Format": of.format or ("saved_model" if manifest else None),
            "Training function": of.train,
            "Ranks": of.ranks,
            "Libraries": of.library_versions,
            "MLflow's run": registered.mlflow_run_id,
            "Fingerprint": registered.fingerprint,
        }
    )


def _intended_use(
    served: ServedModelOf, registered: RegisteredVersion, found: tuple[ModelProperties, Manifest] | None
) -> list[Table | Chart | Any]:
    deployed = registered.made_by.dag_id if registered.made_by else served.dag_id
    maker = found[1].producer.dag_id if found else deployed
    said = None
    with create_session() as session, contextlib.suppress(HTTPException):
        said = pipeline_of(session, maker).doc
    where = f"Nobody has said; doc_md of DAG {maker} or the note of this version are the places to say it."
    return [text.strip() for text in (said, registered.note) if text and text.strip()] or [where]


def _factors(of: ModelProperties) -> list[Section]:
    facts = {"Features": of.features, "Other inputs": sorted(set(of.inputs or ()) - set(of.features or ()))}
    return [
        Section("Factors", [Table.of({**facts, "Classes": of.classes, "Further labels": list(of.more_labels or ())})])
    ]


def _training(of: ModelProperties, manifest: Manifest, lineage: list[tuple[str, str, str, str]]) -> list[Section]:
    rows = [(split, counts.rows_in, counts.rows_out) for split, counts in manifest.rows.items()]
    facts = {"Window": of.window, "Key": of.key, "Time": of.time, "Statistics": of.statistics, "Schema": of.schema}
    return [
        Section(
            "Training data",
            [
                Table.of(facts),
                Table(rows, ["Split", "Rows in", "Rows used"]),
                Table(lineage, ["Made from", "Kind", "Address", "Fingerprint"], "Lineage"),
                Table.of(dict(manifest.metrics), "Measured while training"),
            ],
        )
    ]


def _evaluation(evaluation: Evaluation) -> list[Section]:
    facts = {"Metric": evaluation.metric, "Rule": {k: v for k, v in evaluation.rule.items() if v not in (None, {})}}
    champion = evaluation.champion_version
    verdict = {
        **facts,
        "Blessed": evaluation.blessed,
        "Compared with": champion and f"version {champion}",
        "Why": "; ".join(evaluation.reasons),
    }
    sections = [Section("Metrics", [Table.of(verdict)])]
    for split in evaluation.splits:
        blocks: list[Table | Chart | str] = [_figures(split)]
        for feature, slices in split.slices.items():
            rows = [(each.value, *_compared(each, evaluation.metric)) for each in slices]
            blocks.append(
                Table(rows, [feature, "Rows", evaluation.metric, "Champion", "Gain", "95% interval"], f"By {feature}")
            )
        blocks += _by_class(split.candidate)
        if calibration := split.candidate.get("calibration"):
            points = [(bin["predicted"], bin["observed"]) for bin in calibration]
            blocks.append(draw_lines({"observed": points}, "Calibration: observed against predicted", diagonal=True))
        sections.append(Section(f"Evaluation on {split.name}", blocks))
    for label in evaluation.more_labels:
        tables = [_figures(split, f"On {split.name}") for split in label.splits]
        sections.append(Section(f"Evaluation of {label.label}", tables))
    return sections


def _figures(split: SplitEvaluation, caption: str = "") -> Table:
    def told(figures: Mapping[str, Any] | None, name: str) -> Any:
        value = (figures or {}).get(name)
        low, high = ((figures or {}).get(f"{name}_{end}") for end in ("low", "high"))
        return value if low is None or high is None or value is None else f"{value:.4g} ({low:.4g} to {high:.4g})"

    names = [
        name
        for name, value in split.candidate.items()
        if isinstance(value, int | float) and name not in _NOT_FIGURES and not name.endswith(("_low", "_high"))
    ]
    rows = [("rows", split.rows, split.rows if split.champion else None)]
    rows += [(name, told(split.candidate, name), told(split.champion, name)) for name in names]
    return Table(rows, ["Figure (95% interval)", "This version", "Champion at the time"], caption)


def _compared(of: SliceFigures, metric: str) -> tuple[Any, ...]:
    gain = of.gain
    within = None if gain is None or gain.low is None or gain.high is None else f"{gain.low:.4g} to {gain.high:.4g}"
    champion = (of.champion or {}).get(metric)
    return of.rows, of.candidate.get(metric), champion, gain.difference if gain else None, within


def _by_class(figures: Mapping[str, Any]) -> list[Table | Chart | str]:
    classes = figures.get("classes") or []
    if not classes:
        return []
    columns = [name for name, value in classes[0].items() if isinstance(value, str | int | float)]
    rows = [tuple(each.get(name) for name in columns) for each in classes[:_CLASSES]]
    tables: list[Table | Chart | str] = [Table(rows, columns, "By class")]
    confusion = figures.get("confusion") or []
    if confusion and len(classes) <= _CLASSES:
        names = [str(each.get("name")) for each in classes]
        counted = [(name, *row) for name, row in zip(names, confusion, strict=False)]
        tables.append(Table(counted, ["Is, said to be", *names], "Confusion matrix, in rows"))
    return tables


def _skew(user: GetUserDep, served: ServedModelOf, readable: ReadableDags, version: int, notes: list[str]) -> Section:
    """The newest checks of its requests against its training data, by any task that compares them."""
    sources = get_skew_timeline(user, readable, served.dag_id, limit=1).sources
    names = [f"{each.dag_id}/{each.task_id}" for each in sources if each.model in (None, served.name)]
    checks = [
        check
        for name in names
        for check in get_skew_timeline(user, readable, served.dag_id, name, _CHECKS).checks
        if (check.model, check.version) == (served.name, version)
    ]
    newest = sorted(checks, key=lambda check: check.at, reverse=True)
    rows = [(check.at, check.verdict, check.rows_current, check.drifted, check.causes) for check in newest]
    if not rows:
        by = f"the newest {_CHECKS} checks of each skew task ({', '.join(names)})" if names else "the DAGs' skew checks"
        notes.append(f"None of {by} compared requests with this version's training data.")
    title = "Training-serving skew"
    return Section(title, [Table(rows, ["Checked", "Verdict", "Rows", "Drifted", "Causes"])] if rows else [])


def _decisions(decisions: list[Decision]) -> Table:
    rows = []
    for each in decisions:
        by = each.by
        who = by and (by.user or (by.dag_id and f"DAG {by.dag_id}"))
        rows.append((each.at, each.event.replace("_", " "), who, each.traffic, "; ".join([each.why, *each.reasons])))
    return Table(rows, ["When", "What", "Who", "Traffic", "Why"])


def _caveats(evaluation: Evaluation | None, notes: list[str]) -> list[Table | Chart | str]:
    found = list(notes)
    for split in evaluation.splits if evaluation else ():
        for feature, slices in split.slices.items():
            worse = [each.value for each in slices if each.gain and each.gain.high is not None and each.gain.high < 0]
            if worse:
                values = ", ".join(map(str, worse))
                found.append(
                    f"On {split.name}, worse than the champion at the time beyond chance where {feature} is {values}."
                )
    found.append("What could harm whom is not written here unless the text under Intended use says so.")
    return list(found)
