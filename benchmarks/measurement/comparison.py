"""Figures, ratios and tables of a comparison with the peer."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measurement.processes import PeerRun
from benchmarks.measurement.runs import Run
from benchmarks.measurement.script import differences

PEER_STAGES = {
    "ingest": "CsvExampleGen",
    "statistics": "StatisticsGen",
    "schema": "SchemaGen",
    "validate": "ExampleValidator",
    "transform": "Transform",
    "train": "Trainer",
    "evaluate": "Evaluator",
    "deploy": "Pusher",
}
KNOWN_MARKS = {"cold_s": 55.0, "cached_s": 5.5, "auc": 0.695}
"""What the peer took on an idle machine of 2 cores; they stand in for it where it is left out."""


@dataclass(frozen=True)
class OwnRun:
    """A run of this project's pipeline.

    Attributes:
        run: The DAG run.
        cpu: CPU seconds of Airflow, the model server and all steps.
    """

    run: Run
    cpu: float


@dataclass
class Measurements:
    """All runs: first, cold and cached ones, those with Spark and LightGBM, and the peer's.

    Attributes:
        script: Runs of the plain script.
        alone: Runs of as many tasks that do nothing, with the XComs, assets and links of the pipeline's.
        bare: Runs of as many that have none of these.
        memory: MiB by role, ``idle`` and at the peak of a ``cold`` run of which no time is taken.
    """

    first: list[OwnRun] = field(default_factory=list)
    cold: list[OwnRun] = field(default_factory=list)
    cached: list[OwnRun] = field(default_factory=list)
    spark_cold: list[OwnRun] = field(default_factory=list)
    spark_cached: list[OwnRun] = field(default_factory=list)
    trees_cold: list[OwnRun] = field(default_factory=list)
    peer_cold: list[PeerRun] = field(default_factory=list)
    peer_cached: list[PeerRun] = field(default_factory=list)
    script: list[PeerRun] = field(default_factory=list)
    alone: list[OwnRun] = field(default_factory=list)
    bare: list[OwnRun] = field(default_factory=list)
    memory: dict[str, Mapping[str, float]] = field(default_factory=dict)
    peer_rows: int = 0
    peer_table_s: float = 0.0


def stages_of(found: Measurements) -> dict[str, dict[str, float]]:
    """Median seconds of each stage: ``overhead``, ``start_up``, ``work``, ``total``, ``cached`` and ``peer``."""
    theirs = _peer_components(found.peer_cold)
    stages = {}
    for name in found.cold[0].run.stages:
        parts = ("overhead", "start_up", "work", "total")
        split = {part: _median(getattr(r.run.stages[name], part) for r in found.cold) for part in parts}
        cached = _median(r.run.stages[name].total for r in found.cached)
        stages[name] = {**split, "cached": cached, "peer": theirs.get(PEER_STAGES.get(name, ""), 0.0)}
    return stages


def figures_of(
    found: Measurements, stages: Mapping[str, Mapping[str, float]], *, known_marks: bool = True
) -> dict[str, Any]:
    """Returns the inputs of the ratios, and all that lies behind them.

    Args:
        found: The runs.
        stages: What :func:`stages_of` made of them.
        known_marks: Whether :data:`KNOWN_MARKS`, which are of 160,678 rows, stand in for a peer that was left out.
    """
    figures: dict[str, Any] = {
        "rounds": len(found.cold),
        "peer_measured": bool(found.peer_cold),
        "cold_s": _median(r.run.total for r in found.cold),
        "cached_s": _median(r.run.total for r in found.cached),
        "first_run_s": _median(r.run.total for r in found.first),
        "spark_cold_s": _median(r.run.total for r in found.spark_cold),
        "spark_cached_s": _median(r.run.total for r in found.spark_cached),
        "spark_prepare_s": _median(r.run.stages["prepare"].total for r in found.spark_cold),
        "spark_cpu_s": _median(r.cpu for r in found.spark_cold),
        "spark_auc": _median_auc(found.spark_cold),
        **{f"{part}_s": _sum(stages, part) for part in ("overhead", "start_up", "work")},
        "cpu_s": _median(r.cpu for r in found.cold),
        "first_cpu_s": _median(r.cpu for r in found.first),
        "cached_cpu_s": _median(r.cpu for r in found.cached),
        "auc": _median_auc(found.cold),
        "eval_rows": _evaluation(found.cold[-1].run)["rows"],
        "airflow_alone_s": _median(r.run.total for r in found.alone),
        "airflow_alone_cpu_s": _median(r.cpu for r in found.alone),
        "airflow_alone_bare_s": _median(r.run.total for r in found.bare),
        "script_s": _median(r.total for r in found.script),
        "script_cpu_s": _median(r.cpu for r in found.script),
        "script_parts_s": {
            part: _median(r.answer["seconds"][part] for r in found.script) for part in found.script[0].answer["seconds"]
        },
        "script_differs_by": differences(found.script[0].answer, found.cold[0].run.values),
        "between_steps_s": between_steps(found),
        "memory_mib": {
            moment: {role: round(size) for role, size in roles.items()} for moment, roles in found.memory.items()
        },
        "peak_pss_mib": round(sum(found.memory["cold"].values())),
        "peak_beyond_airflow_mib": round(sum(found.memory["cold"].values()) - _of_airflow(found.memory["idle"])),
        "stages_s": stages,
    }
    if found.trees_cold:
        figures |= {
            "trees_cold_s": _median(r.run.total for r in found.trees_cold),
            "trees_train_s": _median(r.run.stages["train"].total for r in found.trees_cold),
            "trees_cpu_s": _median(r.cpu for r in found.trees_cold),
            "trees_auc": _median_auc(found.trees_cold),
        }
    if found.peer_cold:
        figures |= {
            "peer_cold_s": _median(r.total for r in found.peer_cold),
            "peer_cached_s": _median(r.total for r in found.peer_cached),
            "peer_cpu_s": _median(r.cpu for r in found.peer_cold),
            "peer_auc": round(statistics.median(r.answer["auc"] for r in found.peer_cold), 4),
            "peer_eval_rows": found.peer_cold[-1].answer["eval_rows"],
            "peer_peak_rss_mib": round(max(r.peak_rss_mib for r in found.peer_cold)),
            "peer_rows": found.peer_rows,
            "peer_table_s": round(found.peer_table_s, 2),
            "peer_components_s": _peer_components(found.peer_cold),
        }
    elif known_marks:
        figures |= {f"peer_{name}": mark for name, mark in KNOWN_MARKS.items()}
    figures["every_run_s"] = {
        "first": [round(r.run.total, 2) for r in found.first],
        "cold": [round(r.run.total, 2) for r in found.cold],
        "cached": [round(r.run.total, 2) for r in found.cached],
        "spark_cold": [round(r.run.total, 2) for r in found.spark_cold],
        "spark_cached": [round(r.run.total, 2) for r in found.spark_cached],
        "trees_cold": [round(r.run.total, 2) for r in found.trees_cold],
        "peer_cold": [round(r.total, 2) for r in found.peer_cold],
        "peer_cached": [round(r.total, 2) for r in found.peer_cached],
    }
    return figures


def between_steps(found: Measurements) -> dict[str, dict[str, float]]:
    """Median seconds of all tasks of a run besides their steps: ``queueing``, ``starting``, ``task`` and ``all``.

    ``bare`` and ``alone`` are Airflow's own tasks, ``cached`` and ``cold`` the pipeline's.
    """
    kinds = {"bare": found.bare, "alone": found.alone, "cached": found.cached, "cold": found.cold}
    table = {}
    for name, runs in kinds.items():
        stages = [list(one.run.stages.values()) for one in runs]
        parts = {
            "queueing": _median(sum(stage.queueing for stage in each) for each in stages),
            "starting": _median(sum(stage.starting for stage in each) for each in stages),
            "task": _median(sum(s.overhead - s.queueing - s.starting for s in each) for each in stages),
        }
        table[name] = {**parts, "all": round(sum(parts.values()), 2)}
    return table


def ratios_of(figures: Mapping[str, Any]) -> dict[str, float]:
    """How many times better than the peer; above 1 is ahead."""
    pairs = {
        "cold_times_faster": ("peer_cold_s", "cold_s"),
        "cached_times_faster": ("peer_cached_s", "cached_s"),
        "spark_cold_times_faster": ("peer_cold_s", "spark_cold_s"),
        "spark_cached_times_faster": ("peer_cached_s", "spark_cached_s"),
        "trees_cold_times_faster": ("peer_cold_s", "trees_cold_s"),
        "first_run_times_faster": ("peer_cold_s", "first_run_s"),
        "times_less_cpu": ("peer_cpu_s", "cpu_s"),
        "times_less_memory": ("peer_peak_rss_mib", "peak_pss_mib"),
        "auc_ratio": ("auc", "peer_auc"),
        "script_over_cold": ("script_s", "cold_s"),
        "script_over_cached": ("script_s", "cached_s"),
        "script_over_first": ("script_s", "first_run_s"),
        "script_over_cold_cpu": ("script_cpu_s", "cpu_s"),
        "script_over_cached_cpu": ("script_cpu_s", "cached_cpu_s"),
        "script_over_first_cpu": ("script_cpu_s", "first_cpu_s"),
    }
    return {
        name: round(figures[a] / figures[b], 3) for name, (a, b) in pairs.items() if figures.get(a) and figures.get(b)
    }


def marks_of(figures: Mapping[str, Any], ratios: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Returns the marks, the measured values (None if not measured), and whether each is reached."""
    measured = {
        "cold_times_faster": (ratios.get("cold_times_faster"), 6.5, True),
        "cached_times_faster": (ratios.get("cached_times_faster"), 3.0, True),
        "spark_cold_times_faster": (ratios.get("spark_cold_times_faster"), 5.0, True),
        "spark_cached_times_faster": (ratios.get("spark_cached_times_faster"), 3.0, True),
        "first_run_over_cold": (round(figures["first_run_s"] / figures["cold_s"], 2), 1.25, False),
        "peak_beyond_airflow_mib": (figures["peak_beyond_airflow_mib"], 1.2 * 1024, False),
        "cold_over_script": (round(figures["cold_s"] / figures["script_s"], 2), 1.5, False),
        "script_differs_by": (max(figures["script_differs_by"].values()), 1e-4, False),
    }
    return {
        name: {"mark": mark, "measured": value, "reached": None if value is None else (value >= mark) is at_least}
        for name, (value, mark, at_least) in measured.items()
    }


def print_memory(memory: Mapping[str, Mapping[str, float]], console: Console) -> None:
    """The memory's table."""
    table = Table(title="MiB, each page shared out among the processes that have it", title_justify="left")
    for name in ("", *memory):
        table.add_column(name, justify="right" if name else "left")
    for role in sorted({role for roles in memory.values() for role in roles}):
        table.add_row(role, *(f"{roles.get(role, 0.0):,.0f}" for roles in memory.values()))
    table.add_section()
    table.add_row("all", *(f"{sum(roles.values()):,.0f}" for roles in memory.values()))
    console.print(table)


def print_stages(stages: Mapping[str, Mapping[str, float]], console: Console) -> None:
    """The stages' table."""
    table = Table(title="Seconds of each stage, medians of the cold runs", title_justify="left")
    for name in ("stage", "Airflow's overhead", "start-up", "work", "total", "cached", "peer"):
        table.add_column(name, justify="left" if name == "stage" else "right")
    for name, stage in stages.items():
        table.add_row(name, *(f"{value:.2f}" if value else "" for value in stage.values()))
    table.add_section()
    columns = ("overhead", "start_up", "work", "total", "cached", "peer")
    table.add_row("sum of the medians", *(f"{_sum(stages, column):.2f}" for column in columns))
    console.print(table)


def print_script(figures: Mapping[str, Any], console: Console) -> None:
    """The table of the plain script, and that of the time between the steps."""
    table = Table(title="The same work as a plain script", title_justify="left")
    for name in ("", "seconds", "CPU seconds", "times the script", "times its CPU"):
        table.add_column(name, justify="left" if not name else "right")
    rows = ("script", "first_run", "cold", "cached", "airflow_alone")
    for name in rows:
        cpu = {"first_run": "first_cpu_s", "cold": "cpu_s"}.get(name, f"{name}_cpu_s")
        seconds, used = figures[f"{name}_s"], figures[cpu]
        ratios = (seconds / figures["script_s"], used / figures["script_cpu_s"])
        table.add_row(name.replace("_", " "), f"{seconds:.2f}", f"{used:.2f}", *(f"{ratio:.2f}" for ratio in ratios))
    console.print(table)
    table = Table(title="Seconds besides the steps, all tasks together", title_justify="left")
    for name in ("tasks", "waiting for the scheduler", "starting the process", "the task's process", "sum"):
        table.add_column(name, justify="left" if name == "tasks" else "right")
    for name, parts in figures["between_steps_s"].items():
        table.add_row(name, *(f"{seconds:.2f}" for seconds in parts.values()))
    console.print(table)


def print_comparison(figures: Mapping[str, Any], ratios: Mapping[str, float], console: Console) -> None:
    """The comparison's table."""
    peer = "TFX" if figures["peer_measured"] or "peer_cold_s" not in figures else "TFX (known marks)"
    table = Table(title="The same work", title_justify="left")
    for name in ("", "airflow-hops", peer, "times better"):
        table.add_column(name, justify="left" if not name else "right")
    lines: Sequence[tuple[str, str, str, str]] = (
        ("cold, seconds", "cold_s", "peer_cold_s", "cold_times_faster"),
        ("cold, prepared by Spark, seconds", "spark_cold_s", "peer_cold_s", "spark_cold_times_faster"),
        ("everything cached, prepared by Spark", "spark_cached_s", "peer_cached_s", "spark_cached_times_faster"),
        ("cold with LightGBM, seconds", "trees_cold_s", "peer_cold_s", "trees_cold_times_faster"),
        ("everything cached, seconds", "cached_s", "peer_cached_s", "cached_times_faster"),
        ("Airflow alone: as many tasks that do nothing", "airflow_alone_s", "", ""),
        ("without XComs, assets and links", "airflow_alone_bare_s", "", ""),
        ("first run, no warm process yet, seconds", "first_run_s", "peer_cold_s", "first_run_times_faster"),
        ("CPU seconds, cold", "cpu_s", "peer_cpu_s", "times_less_cpu"),
        ("peak memory, MiB", "peak_pss_mib", "peer_peak_rss_mib", "times_less_memory"),
        ("the same beyond an idle Airflow", "peak_beyond_airflow_mib", "", ""),
        ("AUC", "auc", "peer_auc", "auc_ratio"),
    )
    for title, own, theirs, ratio in lines:
        values = (figures.get(own), figures.get(theirs), ratios.get(ratio))
        table.add_row(title, *("" if value is None else f"{value:,}" for value in values))
    console.print(table)


def _of_airflow(roles: Mapping[str, float]) -> float:
    return sum(size for role, size in roles.items() if role.startswith("Airflow"))


def _evaluation(run: Run) -> dict[str, Any]:
    """AUC and rows of the eval split, as the evaluation's artifact has them."""
    artifact = run.values["evaluate"]
    return {"auc": artifact["metrics"]["eval_auc"], "rows": artifact["rows"]["eval"]["rows_in"]}


def _median_auc(runs: Iterable[OwnRun]) -> float:
    return round(statistics.median(_evaluation(r.run)["auc"] for r in runs), 4)


def _peer_components(runs: Sequence[PeerRun]) -> dict[str, float]:
    names = [name for name in runs[0].answer["seconds"] if name != "total"] if runs else []
    return {name: _median(run.answer["seconds"][name] for run in runs) for name in names}


def _sum(stages: Mapping[str, Mapping[str, float]], part: str) -> float:
    return round(sum(stage[part] for stage in stages.values()), 2)


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 2)
