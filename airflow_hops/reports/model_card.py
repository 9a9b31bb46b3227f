"""Model cards of versions, structured as in Mitchell et al. (2019), "Model Cards for Model Reporting".

The users' part is the documentation (``doc_md``) of the DAG that made the model.
The store provides the rest: data, training, evaluation, gate, rollout, labels, drift, decisions. The card states what
is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from airflow_hops.core.contract.artifacts import Manifest
from airflow_hops.core.contract.evaluation import EvaluationReport
from airflow_hops.core.contract.model_record import ModelEvent
from airflow_hops.core.contract.prices import Prices
from airflow_hops.core.contract.properties import ModelProperties
from airflow_hops.core.contract.run_record import RunRecord
from airflow_hops.reports.evaluations import evaluation_sections, with_interval
from airflow_hops.reports.model_sources import MAX_CHECKS, VersionSources
from airflow_hops.reports.page import Chart, Report, Section, Table

_FEATURES = 200
_TOP_VALUES = 3
_NAMED = 10

Blocks = list[Any]
_T = TypeVar("_T")


def model_card(sources: VersionSources, doc_of: Callable[[str], str | None]) -> Report:
    """Returns the card of a version.

    Args:
        sources: Data on the version that the reader may see.
        doc_of: Returns the documentation of a DAG by its id; empty if it has none, None if it is unknown.
    """
    evaluation, model, notes = sources.evaluation, sources.model, sources.notes
    before: list[tuple[str, Callable[[], Blocks]]] = [
        ("Model details", lambda: [_details(sources)]),
        ("Intended use", lambda: _intended_use(sources, doc_of)),
    ]
    if model:
        before += [
            ("Factors", lambda: [_factors(model[0])]),
            ("Training data", lambda: _training_data(*model, sources)),
            ("Training", lambda: _training(*model, sources.run_record, sources.prices)),
        ]
    before.append(("Gate", lambda: _gate(sources, evaluation)))
    after: list[tuple[str, Callable[[], Blocks]]] = [
        ("Rollout", lambda: _rollout(sources)),
        ("Live performance", lambda: _performance(sources)),
        ("Training-serving skew", lambda: _skew(sources)),
        ("Retraining", lambda: _retraining(sources)),
        ("What was decided", lambda: _decisions(sources)),
    ]

    def section(title: str, make: Callable[[], Blocks]) -> Section:
        return Section(title, _shown(title, make, notes) or ["It cannot be shown; Caveats say why."])

    sections = [
        *(section(title, make) for title, make in before),
        *(_shown("The evaluation", lambda: evaluation_sections(evaluation), notes) if evaluation else ()),
        *(section(title, make) for title, make in after),
    ]
    worse = _shown("Slices that are worse", lambda: _worse_slices(evaluation), notes) if evaluation else []
    harm = "Potential harms appear only if they are described under Intended use."
    sections.append(Section("Caveats", [*notes, *worse, harm]))
    made_by = sources.maker.get("dag_id")
    about = f"Model of DAG {made_by}" if made_by else "Model"
    return Report(f"{sources.name} v{sources.version} model card", about, sections)


def _shown(what: str, make: Callable[[], list[_T]], notes: list[str]) -> list[_T]:
    """Returns the result of ``make``; adds a note and returns nothing if a file has unexpected content."""
    try:
        return make()
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        notes.append(f"{what} cannot be shown ({type(error).__name__}: {error}).")
        return []


def _facts(facts: Mapping[str, Any], caption: str = "") -> Table:
    """Returns a table of facts, of which some may be unknown."""
    return Table(
        [
            (k, "not known" if v in (None, "") else v or "none" if isinstance(v, tuple | list | Mapping) else v)
            for k, v in facts.items()
        ],
        caption=caption,
    )


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _details(sources: VersionSources) -> Table:
    of, manifest = sources.model or (ModelProperties(), None)
    first, maker = sources.registered, sources.maker
    serving = {each.version: role for role, each in sources.record.serving.items()}
    return _facts(
        {
            "Model": sources.name,
            "Version": sources.version,
            "Role": serving.get(sources.version, "serves nothing"),
            "Registered": _time(first.at if first else None),
            "Trained": _time(manifest.created_at) if manifest else None,
            "Made by": f"DAG {maker['dag_id']}, run {maker['run_id']}" if maker else None,
            "Predicts": of.problem,
            "Label": of.label,
            "Framework": of.framework,
            "Format": of.format or ("saved_model" if manifest else None),
            "Fingerprint": manifest.fingerprint if manifest else first and first.fingerprint,
        }
    )


def _intended_use(sources: VersionSources, doc_of: Callable[[str], str | None]) -> Blocks:
    maker = sources.model[1].producer.dag_id if sources.model else sources.maker.get("dag_id")
    if maker is None:
        return ["Not known."]
    text = (doc_of(maker) or "").strip()
    return [text or f"Not documented; describe it in doc_md of DAG {maker}."]


def _factors(of: ModelProperties) -> Table:
    others = sorted(set(of.inputs or ()) - set(of.features or ()))
    factors = {"Features": of.features, "Other inputs": others, "Classes": of.classes or ()}
    return _facts({**factors, "Further labels": list(of.more_labels or ())})


def _training_data(of: ModelProperties, manifest: Manifest, sources: VersionSources) -> Blocks:
    facts = {
        "Window": " to ".join(end or "open" for end in of.window) if of.window else None,
        "Key": of.key,
        "Time": of.time,
        "Statistics": sources.visible(of.statistics),
        "Schema": sources.visible(of.schema),
    }
    rows = [(split, counts.rows_in, counts.rows_out) for split, counts in manifest.rows.items()]
    data: Blocks = [_facts(facts)]
    data.append(Table(rows, ["Split", "Rows in", "Rows used"]) if rows else "The number of rows used is not recorded.")
    data.append(Table(sources.lineage, ["Made from", "Kind", "Address", "Fingerprint"], "Lineage"))
    known = sources.statistics
    for split in ["train"] if "train" in known else known:
        data += _statistics(split, known[split])
    data.append(f"Statistics were computed for {', '.join(known) or 'no split that can be read'}.")
    return [block for block in data if not isinstance(block, Table) or block.rows]


def _statistics(split: str, summary: Mapping[str, Any]) -> Blocks:
    rows, features = summary["rows"], summary["features"]
    shown = list(features.items())[:_FEATURES]
    columns = ["Feature", "Type", "Missing", "Mean or top values", "Deviation", "Least", "Greatest"]

    def mean_or_top(each: Mapping[str, Any]) -> Any:
        top = list(each.get("top_values") or ())[:_TOP_VALUES]
        shares = [f"{value} {count / max(1, rows):.0%}" for value, count in top]
        return each.get("mean") if "mean" in each else ", ".join(shares) or None

    table = [
        (
            name,
            each["type"],
            f"{each['missing'] / rows:.1%}" if rows and "missing" in each else None,
            mean_or_top(each),
            *(each.get(figure) for figure in ("std", "min", "max")),
        )
        for name, each in shown
    ]
    left = len(features) - len(shown)
    more = [f"{left} more features are not shown here."] if left else []
    return [Table(table, columns, f"Statistics of {split}, {rows:,} rows"), *more]


def _training(of: ModelProperties, manifest: Manifest, record: RunRecord | None, prices: Prices | None) -> Blocks:
    cost = {"core_s": "CPU seconds", "gpu_s": "Seconds times GPUs"}
    spent = manifest.cost
    blocks: Blocks = [
        _facts(
            {
                "Training function": of.train,
                "Ranks": of.ranks,
                "Libraries": of.library_versions,
                "Profile of the runtime environment": manifest.profile,
                **{words: spent.get(name) for name, words in cost.items()},
                **({"Cost": prices.text(prices.of_use(spent))} if prices and spent else {}),
            }
        ),
        Table.of(dict(manifest.metrics), "Measured during training")
        if manifest.metrics
        else "No metric was recorded during training.",
    ]
    if record is None:
        return [*blocks, "Its code and packages were not recorded, or the record is gone."]
    code = {
        "User code": f"SHA-256 {record.code}" if record.code else "not kept",
        "Left out of the code": record.code_left_out,
        "airflow-hops": record.package_version,
        "Python": record.python,
        "Packages": record.packages,
        "Not from an index": record.from_elsewhere,
    }
    return [*blocks, _facts(code, "Code and environment")]


def _gate(sources: VersionSources, evaluation: EvaluationReport | None) -> Blocks:
    infra = sources.infra_blessing
    served = "not checked, or not known" if infra is None else "loaded and answered" if infra.blessed else "refused"
    facts: dict[str, Any] = {"On a model server": served}
    if evaluation is None:
        return [_facts({"Evaluation": "none that is known", **facts})]
    champion = evaluation.champion.version if evaluation.champion else None
    rule = {k: v for k, v in evaluation.rule.items() if v not in (None, {})}
    facts = {
        "Metric": evaluation.metric,
        "Rule": rule,
        "Blessed": evaluation.blessed,
        "Compared with": f"version {champion}" if champion else "no champion",
        "Why": "; ".join(evaluation.reasons or ()) or "it met every rule",
        **facts,
    }
    return [_facts(facts)]


def _rollout(sources: VersionSources) -> Blocks:
    """Returns the rollout's steps with the server's counts, oldest first."""
    events = [event for event in sources.record.history if event.version == sources.version and event.decision]
    if not events:
        return [
            "No rollout was judged: the version became champion at once, a person decided, or the rollout is not over."
        ]
    counts, result = [], []
    for event in events:
        decision, at = event.decision, _time(event.at)
        assert decision is not None
        for role, side in (("this version", decision.canary), ("stable version", decision.stable)):
            latency = (side.latency.quantile_ms(0.5), side.latency.quantile_ms(0.99))
            step = (event.event.replace("_", " "), f"{decision.percent}%")
            counts.append((at, *step, role, side.requests, side.errors, side.client_errors, *latency))
        result += [
            (at, each.what.replace("_", " "), each.verdict.replace("_", " "), each.text)
            for each in ([] if _is_hidden(event, sources) else decision.findings)
        ]
    compared = [Table(result, ["When", "Compared", "Verdict", "Found"], "Comparisons")] if result else []
    columns = ["When", "What", "Share", "Of", "Requests", "Failed", "Refused", "p50 ms", "p99 ms"]
    return [Table(counts, columns), *compared]


def _performance(sources: VersionSources) -> Blocks:
    listed, report = sources.performance or (None, None)
    of = report.of_version(sources.version) if report else None
    if listed is None or report is None or of is None:
        return ["No measurement with labels of this version is known, or none that the reader may see."]
    facts = {
        "Label": report.label,
        "From": _time(of.start),
        "To": _time(of.end),
        "Measured at": _time(listed.at),
        "Predictions": of.rows,
        "With a label": f"{of.labelled:,} ({of.labelled / of.rows:.0%})" if of.rows else 0,
        "Measured": of.measured,
        "Seconds until half of the labels have arrived": report.delay_s[0] if report.delay_s else None,
    }
    names = {**of.figures, **of.estimates, **(of.baseline or {})}
    rows = [
        (
            name,
            *(
                with_interval(each[name]) if name in each else None
                for each in (of.figures, of.baseline or {}, of.drop or {}, of.estimates)
            ),
        )
        for name in names
    ]
    columns = [
        "Figure (95% interval)",
        "Live, by labels",
        "Held out at training",
        "Worse by",
        "Estimated without labels",
    ]
    ages = [
        (
            f"{each.from_s / 86_400:g} {'days or more' if each.to_s is None else f'to {each.to_s / 86_400:g} days'}",
            each.rows,
            each.labelled,
        )
        for each in report.ages
    ]
    few = [] if of.figures else ["Too few labels have arrived to compute metrics."]
    blocks: Blocks = [_facts(facts), *few, *([Table(rows, columns)] if rows else [])]
    if ages:
        blocks.append(
            Table(ages, ["Age of the prediction", "Predictions", "With a label"], "Labels by age, all versions")
        )
    # The problem's first metric by period; periods with too few labels are gaps.
    measured = [each for each in report.periods if each.version == sources.version and report.metric in each.figures]
    if len(measured) > 1:
        first, *_ = starts = [datetime.fromisoformat(each.start) for each in measured]
        days = [(start - first).total_seconds() / 86_400 for start in starts]
        points = [(day, each.figures[report.metric][0]) for day, each in zip(days, measured, strict=True)]
        blocks.append(Chart({report.metric: points}, f"{report.metric} by days since {first.date()}"))
    return [*blocks, *report.notes]


def _skew(sources: VersionSources) -> Blocks:
    """Returns the newest checks of requests against the training data, by any task."""
    rows = [
        (
            _time(of.window_end),
            _time(at),
            of.verdict.replace("_", " "),
            metrics.get("rows_current"),
            _named(of.drifted),
            _named(tuple(f"{name}: {cause.replace('_', ' ')}" for name, cause in of.causes.items())),
        )
        for at, of, metrics in sources.checks
    ]
    if not rows:
        return ["No comparison of its requests with its training data is known, or none that the reader may see."]
    caption = f"The newest {MAX_CHECKS}" if len(rows) == MAX_CHECKS else ""
    unwell = [f"The newest: {text}" for text in sources.checks[0][1].unwell]
    return [Table(rows, ["Requests until", "Checked", "Verdict", "Rows", "Drifted", "Causes"], caption), *unwell]


def _named(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _retraining(sources: VersionSources) -> Blocks:
    results = [
        (
            _time(each.decision.at),
            each.decision.outcome,
            each.decision.reason,
            "; ".join(each.decision.limits),
            f"DAG {each.by['dag_id']}, run {each.by['run_id']}",
        )
        for each in sources.retraining
    ]
    if not results:
        return ["No decision on its retraining is known, or none that the reader may see."]
    return [Table(results, ["When, in the data's time", "Retraining", "Why", "Limits", "By"])]


def _decisions(sources: VersionSources) -> Blocks:
    rows = []
    served: Mapping[int, int] = {}
    for event in sources.record.history:
        before, served = served, event.traffic or served
        if sources.version in (event.version, event.to, *before, *served):
            traffic = {f"v{version}": f"{percent}%" for version, percent in (event.traffic or {}).items()}
            what = f"{event.event.replace('_', ' ')} v{event.version}"
            by, is_hidden = event.made_by, _is_hidden(event, sources)
            who = by.get("user") or f"DAG {by['dag_id']}" if by and not is_hidden else None
            if isinstance(event.by, str):  # the user who approved a rollout's last step
                who = event.by
            why = None if is_hidden else _why(event)
            rows.append((_time(event.at), what, who, traffic, why))
    return [Table(rows[::-1], ["When", "What", "Who", "Traffic", "Why"])] if rows else ["It was never deployed."]


def _is_hidden(event: ModelEvent, sources: VersionSources) -> bool:
    """Returns whether the event's DAG is hidden from the reader, since its reasons may reveal the DAG's data."""
    by = event.made_by
    return bool(by) and not sources.sees(by.get("dag_id", ""))


def _why(event: ModelEvent) -> str:
    reasons = [each for each in (event.decision.reasons if event.decision else ()) if each not in event.why]
    return "; ".join(filter(None, [event.why, *reasons, event.note]))


def _worse_slices(evaluation: EvaluationReport) -> list[str]:
    results = []
    for name, split in evaluation.splits.items():
        for feature, slices in (split.slices or {}).items():
            worse = [each.value for each in slices if each.gain and each.gain.high is not None and each.gain.high < 0]
            if worse:
                values = ", ".join(map(str, worse))
                results.append(
                    f"On {name}, worse than the champion at the time beyond chance where {feature} is {values}."
                )
    return results
