"""Health of a pipeline: what is wrong with it, worst first, as a pure function of facts.

``GET /api/pipelines`` judges what database and store tell; what the model server answers comes with the activity, which
pages load separately, and adds at most one finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, get_args

from airflow_hops.core.performance import PerformanceProperties
from airflow_hops.core.skew import DRIFT, INSUFFICIENT, PIPELINE_FAULT, SkewProperties
from airflow_hops.web.models.records import ServedModel
from airflow_hops.web.runs.states import LastRun
from airflow_hops.web.types import Model, Time

State = Literal["broken", "waiting", "unknown", "warning", "idle", "fine"]
"""Worst first. ``idle``: nothing has run or serves yet; ``unknown``: a fact could not be read."""
_STATES = get_args(State)
_OVERDUE = timedelta(hours=1)
_NAMED = 2
_BUSY = ("running", "queued")


class Finding(Model):
    """A fact about the health of a pipeline.

    In a sentence, ``<text> <time>: <detail>``; the time is that of an event for ``run`` and ``scoring``, else it is the
    time since when it is so.
    """

    state: State
    about: Literal["run", "scoring", "schedule", "question", "server", "skew", "performance", "record", "stage"]
    text: str
    since: Time | None = None
    detail: str = ""
    dag_id: str | None = None
    """DAG of the run that it is about; null for the pipeline or its model."""
    run_id: str | None = None


class MemberDag(Model):
    """A DAG of a pipeline: itself, or one that monitors its model or scores tables with it."""

    dag_id: str
    is_paused: bool
    last_run: LastRun | None
    next_run: Time | None
    """Time of the next planned run, which a paused DAG does not start."""


@dataclass(frozen=True)
class ModelFacts:
    """Facts about a model.

    Attributes:
        skew: Newest comparison of its requests, with its time; None if there is none.
        drifting_since: Time of the first of the newest comparisons that found the same of the same version.
        performance: Newest measurement, with its time.
        scored: Number of rows that were scored last, and when; None if none were.
    """

    served: ServedModel
    skew: tuple[datetime, SkewProperties] | None = None
    drifting_since: datetime | None = None
    performance: tuple[datetime, PerformanceProperties] | None = None
    scored: tuple[datetime, int] | None = None

    @property
    def version(self) -> int | None:
        """Returns the version that serves."""
        return self.served.champion.version if self.served.champion else None


@dataclass(frozen=True)
class Facts:
    """Facts about a pipeline.

    Attributes:
        monitors: DAGs that monitor its models; may include itself.
        scorers: DAGs that score tables with its models; may include itself.
        models: Its models, those that it deploys first.
        questions: Times and subjects of the questions that wait for a person, oldest first.
        hidden: Tasks whose stage is not known here, with the reason: its own, and those that name one of its models.
        unread: Tasks whose proposal of a schema cannot be read, with the reason.
    """

    own: MemberDag
    monitors: Sequence[MemberDag] = ()
    scorers: Sequence[MemberDag] = ()
    models: Sequence[ModelFacts] = ()
    questions: Sequence[tuple[datetime, str]] = ()
    hidden: Sequence[tuple[str, str]] = ()
    unread: Sequence[tuple[str, str]] = ()


def health_of(facts: Facts, now: datetime) -> list[Finding]:
    """Returns what there is to say of a pipeline, worst first; the first is its health."""
    findings = [*_runs(facts, now), *_questions(facts)]
    for model in facts.models:
        named = f"{model.served.name}: " if len(facts.models) > 1 else ""
        findings += [
            each.model_copy(update={"text": f"{named}{each.text}"})
            for each in (*_record(model), *_skew(model), *_performance(model))
        ]
    for task, why in facts.hidden:
        text = f"because the operator of {task} cannot be imported"
        findings.append(Finding(state="unknown", about="stage", text=text, detail=why))
    for task, why in facts.unread:
        text = f"because the proposal of {task} cannot be read"
        findings.append(Finding(state="unknown", about="question", text=text, detail=why))
    if not facts.models and facts.own.last_run is None:
        findings.append(Finding(state="idle", about="run", text="it has not run yet"))
    return sorted(findings or [_calm(facts)], key=lambda each: _STATES.index(each.state))


def hidden() -> list[Finding]:
    """Returns the health of a pipeline whose results the user may not read."""
    return [Finding(state="unknown", about="run", text="because you may not read its runs and results")]


def _runs(facts: Facts, now: datetime) -> Iterator[Finding]:
    """Yields failed last runs, canaries that were rolled back, and DAGs that do not do their work."""
    serves = any(model.version is not None for model in facts.models)
    workers = {each.dag_id: each for each in (*facts.monitors, *facts.scorers)}
    scorers = {each.dag_id for each in facts.scorers}
    for member in {facts.own.dag_id: facts.own, **workers}.values():
        run, is_scorer = member.last_run, member.dag_id in scorers
        about = "scoring" if is_scorer else "run"
        place: dict[str, Any] = {"about": about, "dag_id": member.dag_id, "run_id": run.run_id if run else None}
        name = "" if member.dag_id == facts.own.dag_id else f"{member.dag_id}: "
        if run is not None and run.state == "failed":
            task, why = (run.failure.task_id, run.failure.why) if run.failure else ("the run", None)
            moment = run.ended_at or run.run_after
            yield Finding(state="broken", text=f"{name}{task} failed", since=moment, detail=why or "", **place)
        if run is not None and run.state == "success":
            for each in (each for each in run.refusals if each.verdict == "rolled back"):
                text = f"{name}{each.task_id} rolled the canary back"
                yield Finding(state="warning", text=text, since=run.ended_at, detail=each.why or "", **place)
        if not serves or member.dag_id not in workers:
            continue
        if member.is_paused:
            text = "no table is scored" if is_scorer else "nothing watches what serves"
            text = f"{member.dag_id} is paused, so {text}"
            yield Finding(state="warning", about="schedule", text=text, dag_id=member.dag_id)
        elif member.next_run and now - member.next_run > _OVERDUE and (run is None or run.state not in _BUSY):
            text = f"a run of {member.dag_id} is due"
            yield Finding(state="warning", about="schedule", text=text, since=member.next_run, dag_id=member.dag_id)


def _questions(facts: Facts) -> Iterator[Finding]:
    if facts.questions:
        (moment, subject), count = facts.questions[0], len(facts.questions)
        text = "a question waits for you" if count == 1 else f"{count} questions wait for you"
        yield Finding(state="waiting", about="question", text=text, since=moment, detail=subject)


def _record(model: ModelFacts) -> Iterator[Finding]:
    name, problem = model.served.name, model.served.problem
    if problem is not None:
        text = f"because the record of {name} cannot be read"
        yield Finding(state="unknown", about="record", text=text, detail=problem)
    elif model.version is None:
        yield Finding(state="idle", about="record", text=f"no version of {name} serves yet")


def _skew(model: ModelFacts) -> Iterator[Finding]:
    """Yields what the newest comparison found, if it is one of the version that serves."""
    moment, check = model.skew or (None, SkewProperties())
    if moment is None or model.version is None or check.reference.version != model.version:
        return
    more, since = len(check.drifted) - _NAMED, model.drifting_since or moment
    names = ", ".join(check.drifted[:_NAMED]) + (f" and {more} more" if more > 0 else "")
    if check.verdict == PIPELINE_FAULT:
        yield Finding(state="broken", about="skew", text="a source looks broken", since=since, detail=names)
    elif check.verdict == DRIFT:
        yield Finding(state="warning", about="skew", text="drift", since=since, detail=names)
    if check.unwell:
        text = "the monitor cannot tell much"
        yield Finding(state="warning", about="skew", text=text, since=moment, detail=check.unwell[0])


def _performance(model: ModelFacts) -> Iterator[Finding]:
    """Yields what the newest measurement says of the version that serves."""
    moment, measured = model.performance or (None, PerformanceProperties())
    if moment is None or model.version is None:
        return
    figures = measured.of_version(model.version)
    drop = ((figures.drop if figures else None) or {}).get(measured.metric)
    if drop is not None and drop[1] > 0:
        text = f"v{model.version} does worse than in its evaluation"
        detail = f"{measured.metric} by {drop[0]:.3g} ({drop[1]:.3g} to {drop[2]:.3g})"
        yield Finding(state="warning", about="performance", text=text, since=moment, detail=detail)
    if measured.unwell:
        text = "the measurement cannot tell much"
        yield Finding(state="warning", about="performance", text=text, since=moment, detail=measured.unwell[0])


def _calm(facts: Facts) -> Finding:
    """Returns what a pipeline does about which nothing is wrong."""
    run = facts.own.last_run
    if not facts.models:
        text = "it is running" if run is not None and run.state in _BUSY else "its last run succeeded"
        return Finding(state="fine", about="run", text=text, since=run.ended_at if run else None)
    model = facts.models[0]
    checked = _checked(model, is_watched=bool(facts.monitors))
    if model.scored is not None:
        moment, rows = model.scored
        return Finding(state="fine", about="scoring", text=f"{rows:,} rows scored", since=moment, detail=checked)
    return Finding(state="fine", about="record", text=f"v{model.version} serves", detail=checked)


def _checked(model: ModelFacts, *, is_watched: bool) -> str:
    _, check = model.skew or (None, None)
    if check is None or check.reference.version != model.version:
        return f"v{model.version} is not checked yet" if is_watched else "not monitored"
    return "too few rows for a verdict" if check.verdict == INSUFFICIENT else "no drift"
