"""Runs one step: ``python -m airflow_hops.ml spec.json``; the result goes to ``result.json`` beside it."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput, HopsError, details_of, kind_of
from airflow_hops.core.processes.causes import cause_of
from airflow_hops.core.processes.lifetime import adopt_orphans, end_with
from airflow_hops.core.processes.temporary_folders import full_place
from airflow_hops.core.profiles import own_profile
from airflow_hops.core.redaction import hide, redacted
from airflow_hops.core.steps.jobs import Job
from airflow_hops.core.steps.protocol import WORKER_VARIABLE, StepResult, StepSpec, check_json
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.files import reaching_store
from airflow_hops.ml.step.context import RecordHandler, StepContext, made_current, resolve
from airflow_hops.ml.step.generated_code import remove_generated_code
from airflow_hops.ml.step.job_keeper import JobKeeper
from airflow_hops.ml.step.missing_modules import advice_on_missing_module
from airflow_hops.ml.step.newer_profile import written_by_newer

log = logging.getLogger("airflow_hops.step")


def main(arguments: list[str] | None = None, *, started: float | None = None) -> int:
    """Runs the step that a spec describes; returns the process's exit code.

    ``started`` is when the step started (``time.time()``), by default when this process started.
    """
    parser = argparse.ArgumentParser(prog="python -m airflow_hops.ml", description=__doc__)
    parser.add_argument("spec", type=Path, help="the step's spec.json")
    spec_path: Path = parser.parse_args(arguments).spec
    adopt_orphans()
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[RecordHandler()], force=True)
    logging.getLogger("azure").setLevel(logging.WARNING)  # it logs every request to a store
    spec = StepSpec.from_json(spec_path.read_text(), os.environ)
    job = Job.read(spec_path.parent)
    keeper = JobKeeper(job, ArtifactStore(spec.store, storage_options=spec.storage_options)) if job else None
    if keeper is None:
        end_with(os.environ.get(WORKER_VARIABLE, ""))
    elif not keeper.begin():
        return 0
    result = run_step(spec, started=started or _process_started(), folder=spec_path.parent)
    try:
        result.write(spec_path.with_name("result.json"))
    except OSError as error:  # the worker shows the last lines of a step without a result
        log.error("the result cannot be written: %s", _describe(error))
        return 1
    if keeper is not None:
        keeper.finish(result)
    return 0 if result.error is None else 1


def run_step(spec: StepSpec, *, started: float | None = None, folder: Path | None = None) -> StepResult:
    """Imports the entry, calls it, and turns its result or error into a ``StepResult``.

    Args:
        spec: The step.
        started: When its process started (``time.time()``), to measure the start-up.
        folder: Parent of the scratch folder; its creator removes it, even if the step is killed.
    """
    started = started or time.time()
    hide(spec.secret_values())
    sys.path[:0] = [path for path in spec.code_paths if path not in sys.path]
    begun = time.time()
    try:
        entry = resolve(spec.entry)
        begun = time.time()
        with tempfile.TemporaryDirectory(prefix=f"hops-{spec.step[:50]}-", dir=folder) as scratch:
            context = StepContext(spec, Path(scratch))
            if spec.store:
                with reaching_store(spec.store):
                    context.store.check()
            with made_current(context):
                value = entry(context, **spec.params)
        if not isinstance(value, Artifact):
            check_json(value, f"what {spec.entry} returned")
    except BaseException as error:
        log.error("%s", traceback.format_exc().rstrip())
        return StepResult(
            error=redacted(_explain(error) + _newer_inputs(spec)),
            retryable=getattr(error, "retryable", not _is_lasting(error)),
            cause=cause_of(error),
            kind=kind_of(error),
            details=details_of(error),
            seconds={"start_up": begun - started, "work": time.time() - begun},
        )
    finally:
        remove_generated_code()
    is_artifact = isinstance(value, Artifact)
    start_up, ended = begun - started + sum(context.started_s), time.time()
    return StepResult(
        value=value.to_dict() if isinstance(value, Artifact) else value,
        is_artifact=is_artifact,
        seconds={"start_up": round(start_up, 3), "work": round(ended - started - start_up, 3)},
        ended_at=ended,
        phases=tuple(context.phases),
    )


def _newer_inputs(spec: StepSpec) -> str:
    """Names an input that a newer profile wrote, which may be the reason for an error."""
    uris = [artifact.uri for artifacts in spec.inputs.values() for artifact in artifacts]
    if not uris or not spec.store:
        return ""
    return written_by_newer(ArtifactStore(spec.store, storage_options=spec.storage_options), uris, own_profile())


def _explain(error: BaseException) -> str:
    text = _describe(error)
    advice = advice_on_missing_module(text)
    return text if advice in text else f"{text}\n{advice}"


def _is_lasting(error: BaseException) -> bool:
    """Returns whether an error of user code or of the system will happen again."""
    return isinstance(error, ModuleNotFoundError) or getattr(error, "errno", None) == errno.ENAMETOOLONG


def _describe(error: BaseException) -> str:
    if isinstance(error, HopsError | BadInput):
        return str(error)
    if (full := full_place(error)) is not None:
        return full
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"a name is too long for a file system, which takes 255 bytes; shorten it ({str(error)[:300]})"
    if isinstance(error, MemoryError):
        return f"out of memory ({error or 'MemoryError'}); give the step less data or the machine more memory"
    if "'MessageFactory' object has no attribute 'GetPrototype'" in str(error):
        return (
            f"{error}: the runtime environment holds a protobuf newer than its TensorFlow; create it again with "
            "'airflow hops runtime create'"
        )
    return f"{type(error).__name__}: {error}"


def _process_started() -> float:
    """Returns when this process started, from the kernel's clock ticks since boot."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - uptime + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.time()


if __name__ == "__main__":
    sys.exit(main())
