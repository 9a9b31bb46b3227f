"""``airflow hops reproduce``: runs an experiment again and compares the results."""

from __future__ import annotations

import json
import sys
import traceback
from argparse import Namespace
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_hops.airflow_internals.cli import suppress_logs_and_warning
from airflow_hops.airflow_internals.tasks import conf
from airflow_hops.cli.runtime import find_uv
from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.core.contract.protocol import Line, StepResult
from airflow_hops.core.contract.run_record import app_id
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.extensions.replay.hooks.reproduction import (
    RecordedRun,
    data_problems,
    find_run,
    launcher_of,
    run_again,
    step_again,
)
from airflow_hops.extensions.replay.hooks.run_comparison import (
    Compared,
    compare_environments,
    compare_experiments,
    compare_results,
    compare_trial,
)
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.user_code.locked_environment import find_or_make

SAME, DIFFERS, CANNOT_RUN = 0, 1, 2
_COLORS = {"same": "green", "within tolerance": "green", "differs": "red", "not compared": "yellow"}


@suppress_logs_and_warning
def reproduce(args: Namespace) -> None:
    """Reproduces a run; exits with 0 if the result is the same, 1 if it differs, and 2 if it cannot be run."""
    try:
        if not 0 <= args.tolerance < 1:
            raise BadInput(f"--tolerance is {args.tolerance:g}, expected a number from 0 to below 1")
        hook = RuntimeHook(args.hops_conn_id, runtime=args.runtime)
        run = find_run(hook, args.run, incomplete=args.incomplete)
        lines, result = _reproduce(hook, run, args)
    except (HopsError, OSError) as error:
        _say(str(error))
        raise SystemExit(CANNOT_RUN) from None
    except Exception:  # exit code 1 would mean that the result differs
        traceback.print_exc()
        raise SystemExit(CANNOT_RUN) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    of_result = {line.verdict for line in lines if line.is_result}
    verdict = next((v for v in ("differs", "within tolerance", "same") if v in of_result), "not compared")
    uri = result.value["uri"] if result.is_artifact else None
    if args.json:
        report = {"run": run.name, "verdict": verdict, "reproduced": uri, "compared": [asdict(line) for line in lines]}
        print(json.dumps({**report, "lacking": list(run.lacking)}))
    else:
        _print(lines, verdict)
    raise SystemExit(DIFFERS if verdict in ("differs", "not compared") else SAME)


def _reproduce(hook: RuntimeHook, run: RecordedRun, args: Namespace) -> tuple[list[Compared], StepResult]:
    record = run.record
    if run.lacking:
        _say(f"Not known of this run, and taken as it is now: {', '.join(run.lacking)}")
    if problems := list(data_problems(hook.store, record)):
        raise HopsError("the run's data has changed:\n" + "\n".join(f"  {each}" for each in problems))
    count = sum(map(len, record.inputs.values()))
    _say(f"Data: {count} input artifacts, each with its fingerprint" if count else "Data: the step has no inputs")
    with ExitStack() as stack:
        if run.lacking:
            code = Path(conf.get("core", "dags_folder")).expanduser().absolute()
        else:
            code = stack.enter_context(temporary_folder("step", "code"))
        spec = step_again(hook, run, code)
        _say(f"Code: {code if run.lacking else record.code}")
        if args.environment == "lock" and record.packages:
            values = (record.packages, record.from_elsewhere)
            made = find_or_make(hook.settings.runtime, *values, profile=record.profile, find_uv=find_uv, say=_say)
            hook.settings = replace(hook.settings, runtime=made)
        _say(f"Environment: {hook.settings.runtime}")
        reported: dict[str, float] = {}

        def show_progress(line: Line) -> None:
            reported.update(line.metrics)
            figures = "".join(f" {name}={value:.4g}" for name, value in line.metrics.items())
            share = "" if line.progress is None else f"{100 * line.progress:3.0f}% "
            _say(f"  {share}{line.text}{figures}")

        result = run_again(hook, spec, show_progress, launcher_of(hook, record))
    if result.is_artifact:
        _say(f"Reproduced: {result.value['uri']}")
    experiment = None
    if run.experiment is not None:
        experiment = hook.store.internal("Experiments", app_id(spec.producer), run.experiment.rpartition("/")[2])
    fingerprints = [artifact.fingerprint[:12] for values in record.artifacts().values() for artifact in values]
    lines: list[Compared] = []
    if fingerprints:
        lines.append(Compared("data", ", ".join(fingerprints[:3]), "the same", "same", is_result=False))
    if record.code:
        lines.append(Compared("code", record.code[:12], "the same", "same", is_result=False))
    lines += compare_environments(record, hook.settings.runtime)
    if run.experiment is not None and experiment is not None:
        lines += compare_experiments(hook.store, run.experiment, experiment, args.tolerance)
    elif run.returned_metric is not None:
        lines += compare_trial(run.metrics, reported, result, run.returned_metric, args.tolerance)
    else:
        same_environment = not run.lacking and all(line.verdict == "same" for line in lines)
        lines += compare_results(hook, run, result, args.tolerance, same_environment=same_environment)
    return lines, result


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(lines: list[Compared], verdict: str) -> None:
    table: Any = Table("", "recorded", "reproduced", "")
    for line in lines:
        color = _COLORS[line.verdict] if line.is_result or line.verdict == "same" else "yellow"
        table.add_row(*map(Text, (line.what, line.recorded, line.reproduced)), Text(line.verdict, color))
    console = Console()
    console.print(table)
    words = {
        "same": "The result is the same.",
        "within tolerance": "The result is the same within the tolerance.",
        "differs": "The result differs.",
        "not compared": "There is nothing to compare the result with.",
    }
    console.print(f"[bold {_COLORS[verdict]}]{words[verdict]}[/]", highlight=False)
