"""Model cards of versions, structured as in Mitchell et al. (2019), "Model Cards for Model Reporting".

The users' part is the documentation (``doc_md``) of the DAG that made the model.
The store provides the rest: data, training, evaluation, gate, decisions. The card states what is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from airflow_hops import __version__
from airflow_hops.core.artifacts.artifact import Manifest
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.evaluation import EvaluationReport, Figures
from airflow_hops.core.models.model_record import ModelEvent
from airflow_hops.core.steps.run_record import RunRecord
from airflow_hops.extensions.governance.core.cards.markdown import facts, inline, paragraphs, table
from airflow_hops.extensions.governance.core.cards.model_sources import VersionSources

_NOT_FIGURES = ("rows", "weight")

_FEATURES = 200
_TOP_VALUES = 3

Blocks = list[str]
"""Tables and paragraphs, in Markdown."""


def model_card(sources: VersionSources, doc_of: Callable[[str], str | None], at: datetime) -> str:
    """Returns the card of a version in Markdown.

    Args:
        sources: Data on the version; ``sources.dags`` lists the DAGs that the card tells of.
        doc_of: Returns the documentation of a DAG by its id; empty if it has none, None if it is unknown.
        at: Time of the card.
    """
    evaluation, model, notes = sources.evaluation, sources.model, sources.notes

    def section(title: str, make: Callable[[], Blocks]) -> Blocks:
        return [f"## {title}", *(_shown(title, make, notes) or ["It cannot be shown; Caveats say why."])]

    made_by = sources.maker.get("dag_id")
    about = f"Model of DAG {made_by}" if made_by else "Model"
    time = at.isoformat(sep=" ", timespec="minutes").removesuffix("+00:00")
    blocks = [f"# {inline(f'{sources.name} v{sources.version} model card')}", inline(f"{about} · {time} UTC")]
    blocks += section("Model details", lambda: _details(sources))
    blocks += section("Intended use", lambda: _intended_use(sources, doc_of))
    if model:
        blocks += section("Factors", lambda: _factors(model[0]))
        blocks += section("Training data", lambda: _training_data(*model, sources))
        blocks += section("Training", lambda: _training(*model, sources.run_record))
    blocks += section("Gate", lambda: _gate(sources, evaluation))
    worse: Blocks = []
    if evaluation:
        blocks += _shown("The evaluation", lambda: _evaluation(evaluation), notes)
        worse = _shown("Slices that are worse", lambda: worse_slices(evaluation), notes)
    blocks += section("What was decided", lambda: _decisions(sources))
    harm = "Potential harms appear only if they are described under Intended use."
    blocks += ["## Caveats", *map(paragraphs, (*notes, *worse, harm)), f"Written by airflow-hops {__version__}."]
    return "\n\n".join(blocks) + "\n"


def _shown(what: str, make: Callable[[], Blocks], notes: list[str]) -> Blocks:
    """Returns the result of ``make``; adds a note and returns nothing if a file has unexpected content."""
    try:
        return make()
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        notes.append(f"{what} cannot be shown ({type(error).__name__}: {error}).")
        return []


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _details(sources: VersionSources) -> Blocks:
    properties, manifest = sources.model or (ModelProperties(), None)
    first, maker = sources.registered, sources.maker
    serving = {each.version: role for role, each in sources.record.serving.items()}
    return [
        facts(
            {
                "Model": sources.name,
                "Version": sources.version,
                "Role": serving.get(sources.version, "serves nothing"),
                "Registered": _time(first.at if first else None),
                "Trained": _time(manifest.created_at) if manifest else None,
                "Made by": f"DAG {maker['dag_id']}, run {maker['run_id']}" if maker else None,
                "Predicts": properties.problem,
                "Label": properties.label,
                "Framework": properties.framework,
                "Format": properties.format or ("saved_model" if manifest else None),
                "Fingerprint": manifest.fingerprint if manifest else first and first.fingerprint,
            }
        )
    ]


def _intended_use(sources: VersionSources, doc_of: Callable[[str], str | None]) -> Blocks:
    maker = sources.model[1].producer.dag_id if sources.model else sources.maker.get("dag_id")
    if maker is None:
        return ["Not known."]
    doc = doc_of(maker)
    if doc is None:
        return [paragraphs(f"Not known: DAG {maker}, whose doc_md tells it, is gone.")]
    return [paragraphs(doc.strip() or f"Not documented; describe it in doc_md of DAG {maker}.")]


def _factors(properties: ModelProperties) -> Blocks:
    others = sorted(set(properties.inputs or ()) - set(properties.features or ()))
    factors = {"Features": properties.features, "Other inputs": others, "Classes": properties.classes or ()}
    return [facts({**factors, "Further labels": list(properties.more_labels or ())})]


def _training_data(properties: ModelProperties, manifest: Manifest, sources: VersionSources) -> Blocks:
    sources.mention(properties.statistics, properties.schema)
    window = " to ".join(end or "open" for end in properties.window) if properties.window else None
    data = [
        facts(
            {
                "Window": window,
                "Key": properties.key,
                "Time": properties.time,
                "Statistics": properties.statistics,
                "Schema": properties.schema,
            }
        )
    ]
    rows = [(split, counts.rows_in, counts.rows_out) for split, counts in manifest.rows.items()]
    data.append(table(rows, ["Split", "Rows in", "Rows used"]) if rows else "The number of rows used is not recorded.")
    if sources.lineage:
        data.append(table(sources.lineage, ["Made from", "Kind", "Address", "Fingerprint"], "Lineage"))
    known = sources.statistics
    for split in ["train"] if "train" in known else known:
        data += _statistics(split, known[split])
    splits = ", ".join(known) or "no split that can be read"
    return [*data, paragraphs(f"Statistics were computed for {splits}.")]


def _statistics(split: str, summary: Mapping[str, Any]) -> Blocks:
    rows, features = summary["rows"], summary["features"]
    shown = list(features.items())[:_FEATURES]
    columns = ["Feature", "Type", "Missing", "Mean or top values", "Deviation", "Least", "Greatest"]

    def mean_or_top(each: Mapping[str, Any]) -> Any:
        top = list(each.get("top_values") or ())[:_TOP_VALUES]
        shares = [f"{value} {count / max(1, rows):.0%}" for value, count in top]
        return each.get("mean") if "mean" in each else ", ".join(shares) or None

    lines = [
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
    return [*([table(lines, columns, f"Statistics of {split}, {rows:,} rows")] if lines else []), *more]


def _training(properties: ModelProperties, manifest: Manifest, record: RunRecord | None) -> Blocks:
    spent = manifest.cost
    values = {
        "Training function": properties.train,
        "Ranks": properties.ranks,
        "Libraries": properties.library_versions,
        "Profile of the runtime environment": manifest.profile,
        "CPU seconds": spent.get("core_s"),
        "Seconds times GPUs": spent.get("gpu_s"),
    }
    metrics = table(list(manifest.metrics.items()), caption="Measured during training")
    blocks = [facts(values), metrics if manifest.metrics else "No metric was recorded during training."]
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
    return [*blocks, facts(code, "Code and environment")]


def _gate(sources: VersionSources, evaluation: EvaluationReport | None) -> Blocks:
    infra = sources.infra_blessing
    served = "not checked, or not known" if infra is None else "loaded and answered" if infra.blessed else "refused"
    on_server = {"On a model server": served}
    if evaluation is None:
        return [facts({"Evaluation": "none that is known", **on_server})]
    champion = evaluation.champion.version if evaluation.champion else None
    return [
        facts(
            {
                "Metric": evaluation.metric,
                "Rule": {k: v for k, v in evaluation.rule.items() if v not in (None, {})},
                "Blessed": evaluation.blessed,
                "Compared with": f"version {champion}" if champion else "no champion",
                "Why": "; ".join(evaluation.reasons or ()) or "it met every rule",
                **on_server,
            }
        )
    ]


def _evaluation(evaluation: EvaluationReport) -> Blocks:
    sections = evaluation_sections(evaluation)
    return [block for title, blocks in sections.items() for block in (f"## {inline(title)}", *blocks)]


def _decisions(sources: VersionSources) -> Blocks:
    rows = []
    served: Mapping[int, int] = {}
    for event in sources.record.history:
        earlier, served = served, event.traffic or served
        if sources.version in (event.version, event.to, *earlier, *served):
            traffic = {f"v{version}": f"{percent}%" for version, percent in (event.traffic or {}).items()}
            what = f"{event.event.replace('_', ' ')} v{event.version}"
            who = event.made_by.get("user") or (f"DAG {event.made_by['dag_id']}" if event.made_by else None)
            if isinstance(event.by, str):  # the user who approved a rollout's last step
                who = event.by
            rows.append((_time(event.at), what, who, traffic, _why(event)))
    return [table(rows[::-1], ["When", "What", "Who", "Traffic", "Why"])] if rows else ["It was never deployed."]


def _why(event: ModelEvent) -> str:
    reasons = [each for each in (event.decision.reasons if event.decision else ()) if each not in event.why]
    return "; ".join(filter(None, [event.why, *reasons, event.note]))


def evaluation_sections(evaluation: EvaluationReport) -> dict[str, list[str]]:
    """Returns a section for each split, with its slices, and one for each further label, by title."""
    sections = {}
    for name, split in evaluation.splits.items():
        blocks = [_figures(split)]
        for feature, slices in (split.slices or {}).items():
            rows = [(each.value, *_compared(each, evaluation.metric)) for each in slices]
            columns = [feature, "Rows", evaluation.metric, "Champion", "Gain", "95% interval"]
            blocks.append(table(rows, columns, f"By {feature}"))
        sections[f"Evaluation on {name}"] = blocks
    for label, figures in (evaluation.more_labels or {}).items():
        sections[f"Evaluation of {label}"] = [_figures(split, f"On {name}") for name, split in figures.splits.items()]
    return sections


def worse_slices(evaluation: EvaluationReport) -> list[str]:
    """Returns a sentence for each feature with slices in which the champion of that time is better beyond chance."""
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


def _with_interval(value: float, low: float, high: float) -> str:
    return f"{value:.4g} ({low:.4g} to {high:.4g})"


def _figures(split: Figures, caption: str = "") -> str:
    def figure(figures: Mapping[str, Any] | None, name: str) -> Any:
        value, low, high = ((figures or {}).get(f"{name}{end}") for end in ("", "_low", "_high"))
        return value if low is None or high is None or value is None else _with_interval(value, low, high)

    names = [
        name
        for name, value in split.candidate.items()
        if isinstance(value, int | float) and name not in _NOT_FIGURES and not name.endswith(("_low", "_high"))
    ]
    rows = [("rows", split.rows, split.rows if split.champion else None)]
    rows += [(name, figure(split.candidate, name), figure(split.champion, name)) for name in names]
    return table(rows, ["Figure (95% interval)", "This version", "Champion at the time"], caption)


def _compared(figures: Figures, metric: str) -> tuple[Any, ...]:
    gain = figures.gain
    within = f"{gain.low:.4g} to {gain.high:.4g}" if gain and gain.low is not None and gain.high is not None else None
    champion = (figures.champion or {}).get(metric)
    return figures.rows, figures.candidate.get(metric), champion, gain.difference if gain else None, within
