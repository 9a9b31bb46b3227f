"""Compares a run with its reproduction: inputs and results."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import airflow_hops
from airflow_hops.core.contract.artifacts import Artifact, BadInput, HopsError
from airflow_hops.core.contract.profiles import profile_of
from airflow_hops.core.contract.protocol import StepResult, StepSpec
from airflow_hops.core.contract.run_record import RunRecord
from airflow_hops.core.store import ArtifactStore
from airflow_hops.environments.named import packages_of, python_version
from airflow_hops.extensions.replay.hooks.reproduction import RecordedRun
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.user_code.fingerprints import package_fingerprint
from airflow_hops.user_code.locked_environment import changed_packages

Verdict = Literal["same", "within tolerance", "differs", "not compared"]
OF_TIME = frozenset({"seconds", "examples_per_second", "scaling_efficiency"})
"""Metrics that measure time."""

_COMPARE = "airflow_hops.extensions.replay.ml.reproduce.compare:run"
_NAMED_PACKAGES = 5
_NEAR_ZERO = 1e-3
"""The absolute tolerance is the relative tolerance times this."""


@dataclass(frozen=True)
class Compared:
    """A row of the comparison.

    Attributes:
        what: Name of the compared value.
        is_result: Whether it counts for the verdict; otherwise it explains it.
    """

    what: str
    recorded: str
    reproduced: str
    verdict: Verdict
    is_result: bool = True


def compare_environments(record: RunRecord, runtime: Path) -> Iterator[Compared]:
    """Compares libraries, Python and this package with those in the record."""
    changed = changed_packages(record.packages, packages_of(runtime)) if record.packages else {}
    names = list(changed)[:_NAMED_PACKAGES]
    more = f" and {len(changed) - len(names)} more" if len(changed) > len(names) else ""
    before, after = (", ".join(f"{name} {changed[name][side] or '-'}" for name in names) + more for side in (0, 1))
    count = f"{len(record.packages)} packages"
    if not record.packages:
        yield Compared("libraries", "not recorded", str(runtime), "not compared", is_result=False)
    else:
        yield Compared("libraries", before or count, after or count, _verdict(not changed), is_result=False)
    profile = present.name if (present := profile_of(runtime)) else "unknown"
    before = record.profile or "not recorded"
    verdict = _verdict(profile == before) if record.profile else "not compared"
    yield Compared("profile", before, profile, verdict, is_result=False)
    python = python_version(runtime)
    yield Compared("Python", record.python, python, _verdict(python == record.python), is_result=False)
    same = record.parts.get("code") == package_fingerprint()
    version = airflow_hops.__version__
    now = version if same or version != record.package_version else f"{version}, other code"
    yield Compared("airflow-hops", record.package_version or "?", now, _verdict(same), is_result=False)


def compare_metrics(before: Mapping[str, float], after: Mapping[str, float], tolerance: float) -> Iterator[Compared]:
    """Compares metrics, except those that measure time; ``tolerance`` is a share."""
    for name in sorted((before.keys() | after.keys()) - OF_TIME):
        one, other = before.get(name), after.get(name)
        if one is None or other is None:
            before_it, after_it = ("none" if each is None else f"{each:.8g}" for each in (one, other))
            yield Compared(f"metric {name}", before_it, after_it, "differs")
        else:
            yield Compared(f"metric {name}", f"{one:.8g}", f"{other:.8g}", _close(one, other, tolerance))


def compare_curves(store: ArtifactStore, recorded: Artifact, reproduced: Artifact, tolerance: float) -> list[Compared]:
    """Compares the metrics of each epoch by their largest difference; empty if there are none."""
    try:
        one, other = (store.read_json(f"{uri}/training.json")["epochs"] for uri in (recorded.uri, reproduced.uri))
        if not one and not other:
            return []
        if len(one) != len(other):
            return [Compared("curves", f"{len(one)} epochs", f"{len(other)} epochs", "differs")]
        names = {name for epoch in one for name in epoch} - {"seconds"}
        pairs = [(a[n], b.get(n, math.nan)) for a, b in zip(one, other, strict=True) for n in names & a.keys()]
    except (FileNotFoundError, BadInput, LookupError, TypeError, AttributeError):
        return []
    verdicts = {_close(float(a), float(b), tolerance) for a, b in pairs}
    largest = max((abs(float(a) - float(b)) for a, b in pairs), default=0.0)
    worst: Verdict = next((v for v in ("differs", "within tolerance") if v in verdicts), "same")
    text = f"{len(one)} epochs, {len(names)} metrics"
    return [Compared("curves", text, f"largest difference {largest:.3g}" if largest else text, worst)]


def compare_results(
    hook: RuntimeHook, run: RecordedRun, result: StepResult, tolerance: float, *, same_environment: bool
) -> Iterator[Compared]:
    """Compares the results of a step and of its reproduction; not for experiments and trials.

    Weights of models are expected to be equal only if ``same_environment`` is true.
    """
    if run.best is not None:
        value = result.value if isinstance(result.value, Mapping) else {}
        best = (Artifact.from_dict(value).properties if result.is_artifact else value).get("params")
        verdict = _verdict(run.best == best)
        yield Compared("best parameters", json.dumps(run.best)[:60], json.dumps(best)[:60], verdict)
    if not result.is_artifact:
        yield from compare_values(run.metrics, result.value, tolerance)
        return
    reproduced, recorded = Artifact.from_dict(result.value), run.artifact
    if reproduced.kind == "notebook" and recorded is not None:
        yield from compare_notebooks(hook.store, recorded, reproduced)
        return
    yield from compare_metrics(run.metrics, reproduced.metrics, tolerance)
    if recorded is None:
        return
    if reproduced.kind != "model":
        same = recorded.fingerprint == reproduced.fingerprint
        yield Compared("files", recorded.fingerprint[:12], reproduced.fingerprint[:12], _verdict(same))
        return
    yield from compare_curves(hook.store, recorded, reproduced, tolerance)
    examples = run.record.artifacts().get("examples", ())
    inputs = {"recorded": (recorded,), "reproduced": (reproduced,), "examples": examples}
    spec = StepSpec("compare", _COMPARE, {"weights_decide": same_environment}, inputs=inputs)
    try:
        yield from _compare_models(hook.run(spec, cache=False, on_line=lambda line: None).value, tolerance)
    except HopsError as error:
        yield Compared("weights", "", str(error), "not compared", is_result=False)


def _compare_models(found: Mapping[str, Any], tolerance: float) -> Iterator[Compared]:
    """Compares weights and predictions of two models, as measured by ``ml.reproduce.compare``.

    Different weights do not decide, since equal models can have different weights: then predictions decide. Their
    tolerance is absolute, since they are shares of 1 or of the standard deviation.
    """
    weights, predictions = found["weights"], found["predictions"]
    count = f"{weights['tensors']} tensors" if "tensors" in weights else "its files"
    difference = weights.get("difference")
    text = "identical bits" if weights["identical"] else "other tensors" if "tensors" in weights else "other bits"
    if difference:
        text = f"largest difference {difference:.3g}"
    decides = weights["identical"] or (predictions is not None and "difference" not in predictions)
    yield Compared("weights", count, text, _verdict(weights["identical"]), is_result=decides)
    if predictions is None:
        return
    if "difference" not in predictions:
        yield Compared("predictions", "", predictions["why"], "not compared", is_result=False)
        return
    largest, rows = predictions["difference"], f"{predictions['rows']:,} rows of the eval split"
    verdict: Verdict = "same" if largest == 0 else "within tolerance" if largest <= tolerance else "differs"
    yield Compared("predictions", rows, f"largest difference {largest:.3g}", verdict)


def compare_notebooks(store: ArtifactStore, recorded: Artifact, reproduced: Artifact) -> Iterator[Compared]:
    """Compares the cell outputs of two executed notebooks, and the values that they returned."""
    sides: list[list[Any]] = []
    for artifact in (recorded, reproduced):
        cells = store.read_json(f"{artifact.uri}/notebook.ipynb")["cells"]
        outputs = [cell.get("outputs", []) for cell in cells if cell.get("cell_type") == "code"]
        varying = ("execution_count", "metadata")
        sides.append([[{k: v for k, v in each.items() if k not in varying} for each in of] for of in outputs])
    one, other = sides
    differing = [place for place, (a, b) in enumerate(zip(one, other, strict=False), start=1) if a != b]
    said = (
        f"{len(differing)} differ, the first is code cell {differing[0]}" if differing else f"{len(other)} code cells"
    )
    same = not differing and len(one) == len(other)
    yield Compared("outputs of cells", f"{len(one)} code cells", said, _verdict(same))
    left, left_now = (artifact.properties.get("result") for artifact in (recorded, reproduced))
    if (left, left_now) != (None, None):
        yield Compared("result", json.dumps(left)[:60], json.dumps(left_now)[:60], _verdict(left == left_now))


def compare_experiments(store: ArtifactStore, recorded: str, reproduced: str, tolerance: float) -> Iterator[Compared]:
    """Compares the best metric and hyperparameters of two experiments of the package ``hops``, by their folders."""
    one, other = (store.read_json(f"{uri}/experiment.json") for uri in (recorded, reproduced))
    before, after = ({} if each["metric"] is None else {"metric": each["metric"]} for each in (one, other))
    yield from compare_metrics(before, after, tolerance)
    best, best_now = str(one["hyperparameter"]), str(other["hyperparameter"])
    yield Compared("best hyperparameters", best[:60], best_now[:60], _verdict(best == best_now))


def compare_values(before: Mapping[str, float], value: Any, tolerance: float) -> Iterator[Compared]:
    """Compares the values that a training function returned: its metrics, or a single number."""
    if after := returned_metrics(value, next(iter(before)) if len(before) == 1 else None, before):
        yield from compare_metrics(before, after, tolerance)
    else:
        yield Compared("value", "not kept", json.dumps(value)[:60], "not compared", is_result=False)


def compare_trial(
    before: Mapping[str, float], reported: Mapping[str, float], result: StepResult, metric: str, tolerance: float
) -> Iterator[Compared]:
    """Compares the metrics of a trial: reported ones, those of its training, and those that its function returned.

    ``reported`` has the metrics that the reproduction reported while it ran; ``metric`` names a single returned number.
    """
    of_fit = {
        f"eval_{n.removeprefix('val_')}" if n.startswith("val_") else f"train_{n}": v for n, v in reported.items()
    }
    if result.is_artifact:
        made: Mapping[str, float] = Artifact.from_dict(result.value).metrics
    else:
        made = returned_metrics(result.value, metric, before)
    after = {**of_fit, **reported, **made}
    yield from compare_metrics(before, {name: after[name] for name in before.keys() & after.keys()}, tolerance)


def returned_metrics(value: Any, metric: str | None, names: Collection[str]) -> dict[str, float]:
    """Returns the numbers in a function's result that are in ``names``; ``metric`` names a single number."""
    if isinstance(value, Mapping) and isinstance(value.get("metrics"), Mapping):
        value = value["metrics"]
    values = value if isinstance(value, Mapping) else {metric or "": value}
    return {n: float(v) for n, v in values.items() if n in names and isinstance(v, int | float)}


def _close(one: float, other: float, tolerance: float) -> Verdict:
    if one == other or (math.isnan(one) and math.isnan(other)):
        return "same"
    close = math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance * _NEAR_ZERO)
    return "within tolerance" if close else "differs"


def _verdict(same: bool) -> Verdict:
    return "same" if same else "differs"
