"""Runs steps: finds them in the cache, hands them to a launcher, streams their output, reads their result."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pkgutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseHook

from airflow_hops.airflow_internals.tasks import AirflowTaskTimeout, conf, mask_secret
from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput, HopsError, StepFailed, StoreAway, error_from
from airflow_hops.core.extensions import STEP_GATES, load_all
from airflow_hops.core.processes.ending import GRACE_S
from airflow_hops.core.processes.temporary_folders import full_folder, full_place, temporary_folder, variables_of_step
from airflow_hops.core.profiles import is_standalone
from airflow_hops.core.redaction import hide
from airflow_hops.core.sources.sources import source_class
from airflow_hops.core.steps.protocol import Line, StepResult, StepSpec, parse_line
from airflow_hops.core.steps.step_cache import find_cached, record_cached
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.files import reaching_store
from airflow_hops.core.store.uses import record_uses
from airflow_hops.runner.environments.named import runtime_fingerprint
from airflow_hops.runner.launchers.base import Launcher, find_launcher
from airflow_hops.runner.launchers.process import Deferral, StepProcess, describe_exit
from airflow_hops.runner.launchers.warm import WarmStart, import_settings
from airflow_hops.runner.progress import ProgressWriter
from airflow_hops.runner.run_records import record_run, without_secrets
from airflow_hops.runner.settings import DEFAULT_CONN_ID, NO_CONNECTION, Settings, read_settings
from airflow_hops.runner.user_code.fingerprints import package_fingerprint

if TYPE_CHECKING:
    from airflow_hops.airflow_internals.triggers import BaseTrigger

_LAST_LINES = 20
_PATIENCE_S = 10.0
_KILL_S = 3.5
"""Seconds between SIGTERM and SIGKILL; Airflow kills the task's own process 5 s after its SIGTERM."""
WAITS_HERE = "This step needs its worker, which waits for it: 'deferrable' applies to steps as pods"


@dataclass(frozen=True)
class LeftStep:
    """A step that a task has left to a trigger.

    Attributes:
        cache_key_parts: Those of its spec: it has the code and parameters that it was started with.
        launched_at: Time of its start, in seconds since 1970.
        until: Time at which it is ended, as the task's ``execution_timeout`` is over; None for no time.
        event: Payload of the trigger's event.
    """

    cache_key_parts: Mapping[str, str]
    launched_at: float
    until: float | None
    event: Any = None


class StepGate:
    """Decides whether steps may start (``airflow_hops.step_gates``): each that no cache answers passes all gates."""

    def admit(self, hook: RuntimeHook, spec: StepSpec) -> None:
        """Raises an error if the step may not start."""

    def count(self, hook: RuntimeHook, artifact: Artifact) -> None:
        """Counts the artifact of a step that has ended."""


class RuntimeHook(BaseHook):
    """Connection type ``hops``: the artifact store, the runtime environment, MLflow and the model server.

    Args:
        hops_conn_id: The connection; a missing one means the defaults of the ``[hops]`` section.
        runtime: Name of an environment that was made with ``airflow hops runtime create --name``; None for the
            connection's.

    Attributes:
        progress: Address of the file for the steps' progress; None for no file.
    """

    conn_name_attr = "hops_conn_id"
    default_conn_name = DEFAULT_CONN_ID

    def __init__(self, hops_conn_id: str = default_conn_name, *, runtime: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hops_conn_id, self.runtime = hops_conn_id, runtime
        self.progress: ProgressWriter | None = None
        self._process: StepProcess | None = None
        self._killed = False

    @cached_property
    def settings(self) -> Settings:
        """The connection's fields, completed from the configuration and the defaults.

        Raises:
            BadInput: a field does not parse, or there is no field or option of its name.
        """
        return read_settings(self.hops_conn_id, self.runtime)

    @cached_property
    def store(self) -> ArtifactStore:
        """The artifact store.

        Raises:
            StoreAway: it is not there; see :meth:`find_store` for a new one.
        """
        store = self.open_store()
        with reaching_store(store.root):
            store.check()
        return store

    def open_store(self) -> ArtifactStore:
        """Returns the artifact store, which is not checked: it may be missing."""
        return ArtifactStore(self.settings.store, storage_options=self.settings.storage_options)

    def find_store(self, is_used: Callable[[str], bool]) -> ArtifactStore:
        """Returns the artifact store, which may be missing if it is new: ``is_used`` tells by the root if it is not.

        Methods of one that is missing, and not new, raise StoreAway.
        """
        store = self.open_store()
        with contextlib.suppress(StoreAway), reaching_store(store.root):
            store.check()
            return store
        return store if is_used(store.root) else self.open_store()

    def make_store(self, is_used: Callable[[str], bool] = lambda root: False) -> None:
        """Makes the artifact store if it is new; see :meth:`find_store`.

        Raises:
            StoreAway: it is missing, and not new.
            HopsError: it cannot be reached, or not be written.
        """
        store = self.find_store(is_used)
        with reaching_store(store.root):
            store.make()
        self.store = store

    def run(
        self,
        spec: StepSpec,
        *,
        launcher: Launcher | None = None,
        cache: bool = True,
        on_line: Callable[[Line], None] | None = None,
        until: float | None = None,
        defer: Callable[[BaseTrigger, LeftStep], NoReturn] | None = None,
        left: LeftStep | None = None,
    ) -> StepResult:
        """Runs a step to its end, or takes its artifact from an earlier run of the same.

        Args:
            spec: The step; store, services and cache key parts are filled in here.
            launcher: Launcher that runs it; by default the local one.
            cache: Whether an artifact that the same task made from the same parts will do.
            on_line: Called with each line of output; by default lines go to the task's log at their level.
            until: Time at which a deferred task is resumed at the latest, in seconds since 1970; None for no time.
            defer: Called with the trigger that follows the step from now on; None to wait here.
            left: The step that the task left to a trigger; None to start one.

        Raises:
            StepFailed: the step failed, was killed, or left no result.
            BadInput: the spec cannot be run, or an extension does not allow it to start.
            AirflowTaskTimeout: the step that was left was not over in time.
        """
        from airflow_hops.runner.spans import step_span  # its imports would slow down every DAG file

        with step_span(spec) as note:
            spec = self.complete(spec)
            if left is not None:
                spec = replace(spec, cache_key_parts=left.cache_key_parts)
            launcher = launcher or self.local_launcher()
            result = self.find_cached(spec) if cache and left is None else None
            if result is not None:
                launcher.drop(spec)
            else:
                with contextlib.ExitStack() as ending:
                    result = self._launch(ending, spec, launcher, on_line, until, defer, left)
                    self.record_end(spec, result, cache=cache)
            note(result)
        return result

    def complete(self, spec: StepSpec) -> StepSpec:
        """A spec with store, services and cache key parts filled in."""
        settings = self.settings
        if settings.source == NO_CONNECTION:
            self.log.info("There is no connection %r: the store is %s", self.hops_conn_id, settings.store)
        services = {**settings.services, **spec.services}
        secrets = without_secrets(spec.params)[1]
        spec = replace(spec, store=settings.store, storage_options=settings.storage_options, services=services)
        spec = replace(spec, secrets=secrets, source_options=_source_options(spec.params))
        hide(spec.secret_values())  # in the lines that user code prints
        from airflow_hops.runner.user_code.files import UserFiles
        from airflow_hops.runner.user_code.libraries import Libraries  # their imports would slow down every DAG file

        code = UserFiles(spec, Libraries(settings.runtime))
        if code.unknown and spec.output is not None:
            self.log.warning("No earlier artifact can match this code: %s", "; ".join(code.unknown))
        parts = {
            "code": package_fingerprint(),
            "runtime": runtime_fingerprint(settings.runtime),
            "parameters": _fingerprint_of_json(spec.params),
            "user code": code.fingerprint,
        }
        for role, artifacts in spec.inputs.items():
            # The key has properties, since equal rows may have different windows, but no plans: the rows show them.
            parts[f"input {role}"] = _fingerprint_of_json(
                [[a.fingerprint, {**a.properties, "plans": None}] for a in artifacts]
            )
        if "store" not in vars(self):  # no task that knows whether it is new
            self.make_store()
        with reaching_store(self.settings.store):
            record_uses(self.store, spec.producer, _inputs(spec))
        return replace(spec, cache_key_parts={**parts, **spec.cache_key_parts})

    def find_cached(self, spec: StepSpec) -> StepResult | None:
        """The artifact that the same task made from the same parts, or None."""
        if spec.output is None:
            return None
        with reaching_store(self.settings.store):
            artifact, why = find_cached(self.store, spec.producer, spec.cache_key_parts, _inputs(spec))
        if artifact is None:
            self.log.info("Not cached: %s", why)
            return None
        self.log.info("Cached: %s (%s)", artifact.uri, why)
        return StepResult(value=artifact.to_dict(), is_artifact=True, seconds={"start_up": 0.0, "work": 0.0})

    def admit(self, spec: StepSpec) -> None:
        """Raises the error of an extension that does not allow a step to start."""
        for gate in load_all(STEP_GATES, StepGate).values():
            gate.admit(self, spec)

    def record_end(self, spec: StepSpec, result: StepResult, *, cache: bool) -> None:
        """Has gates count a step's artifact, and remembers it for :meth:`find_cached` with ``cache``."""
        if spec.output is None or not result.is_artifact:
            return
        artifact = Artifact.from_dict(result.value)
        try:
            for gate in load_all(STEP_GATES, StepGate).values():
                gate.count(self, artifact)
            if cache:
                record_cached(self.store, spec.producer, spec.cache_key_parts, artifact)
        except (OSError, HopsError) as error:
            # The artifact is complete, so a failed entry must not fail the task.
            self.log.warning(
                "This artifact may not be counted, or not be found in the cache by the next run: %s", error
            )

    def record_run(self, spec: StepSpec) -> None:
        """Stores the record of a run; logs a failure to store it."""
        if (lacking := record_run(self.store, self.settings.runtime, spec)) is not None:
            self.log.warning("Record of this run: %s", lacking)

    def make_launcher(self, name: str, **options: Any) -> Launcher:
        """Makes a registered launcher.

        Args:
            name: Its name in the entry-point group ``airflow_hops.launchers``.
            **options: Its own arguments.

        Raises:
            BadInput: the launcher is unknown, cannot be imported, or does not take these arguments.
        """
        kind = find_launcher(name)
        try:
            return kind(runtime=self.settings.runtime, warm=self.warm_start(), **options)
        except TypeError as error:
            raise BadInput(f"launcher {name!r}: {error}") from error

    def local_launcher(self) -> Launcher:
        """The launcher of steps on this machine."""
        return self.make_launcher("local")

    def cluster_launcher(self, conf: Mapping[str, object] | None = None) -> Launcher | None:
        """Returns Spark's launcher if the master of the Spark connection is a cluster; None if it is this machine."""
        from airflow_hops.runner.launchers.spark import SparkLauncher

        launcher = self.make_launcher("spark", conn_id=self.settings.spark_conn_id, conf=conf)
        return None if isinstance(launcher, SparkLauncher) and launcher.is_local else launcher

    def warm_start(self) -> WarmStart | None:
        """Returns the client of the warm process; None if ``[hops] warm_start`` is off, or without its libraries."""
        runtime = self.settings.runtime
        if not conf.getboolean("hops", "warm_start", fallback=True) or is_standalone(runtime):
            return None
        return WarmStart(warm_socket(runtime), runtime / "bin" / "python")

    @property
    def killed(self) -> bool:
        """Whether :meth:`kill` has been called."""
        return self._killed

    def kill(self) -> None:
        """Ends the running step with all its processes."""
        self._killed = True
        if self._process is not None:
            self._process.kill(_KILL_S)

    def watch(
        self, step: str, process: StepProcess, folder: Path, on_line: Callable[[Line], None] | None = None
    ) -> StepResult:
        """Streams the output of a step's process until it ends, and reads its result.

        Args:
            step: The step's name.
            process: Its process.
            folder: Folder of its result.
            on_line: Called with each line of output; by default lines go to the task's log at their level.

        Raises:
            StepFailed: the step failed, was killed, or left no result.
        """
        self._process = process
        last = deque(process.last_lines, maxlen=_LAST_LINES)

        def hear(texts: Iterator[str]) -> None:
            for text in texts:
                line = parse_line(text)
                last.append(line.text)
                (on_line or self.show)(line)

        code = -signal.SIGKILL
        try:
            if self._killed:
                process.kill()
            hear(process.lines())
            code = process.wait()
        finally:
            # Also after success, so that a step leaves no process behind. Without a kill, processes get time to end:
            # a JVM removes the files that Spark has spilled.
            process.kill(_PATIENCE_S if code >= 0 else GRACE_S)
            self._process = None
        result = StepResult.read(folder / "result.json")
        if result is None:
            hear(process.read_lines(is_over=True))  # descendants may say more than the step
            full = full_folder(folder)  # then its last lines are not in its log
            raise StepFailed(
                f"step {step!r} ended by {describe_exit(code)} without a result"
                f"{f': {full}' if full else ''}; its last lines:\n" + "\n".join(f"  {text}" for text in last),
                step=step,
                retryable=True,
            )
        if result.error is not None:
            error = error_from(result.kind, result.error, retryable=result.retryable, details=result.details)
            message = f"step {step!r}: {result.error}"
            raise StepFailed(message, step=step, retryable=result.retryable, cause=result.cause, error=error)
        return result

    @contextlib.contextmanager
    def _with_rows(self, spec: StepSpec) -> Iterator[StepSpec]:
        """Yields the spec with access to rows that only this side can read, which lasts as long as the step."""
        with contextlib.ExitStack() as stack:
            for source in _sources_in(spec.params):
                if fetcher := source_class(source["uri"]).fetcher:
                    options = stack.enter_context(pkgutil.resolve_name(fetcher)(source, spec, self.store))
                    spec = replace(spec, source_options={**spec.source_options, **options})
            yield spec

    def _launch(
        self,
        ending: contextlib.ExitStack,
        spec: StepSpec,
        launcher: Launcher,
        on_line: Callable[[Line], None] | None,
        until: float | None,
        defer: Callable[[BaseTrigger, LeftStep], NoReturn] | None,
        left: LeftStep | None,
    ) -> StepResult:
        """Starts or follows the step to its end; what is left of it then is removed at the end of ``ending``."""
        is_followed = left is None and launcher.follows(spec)
        if left is None and not is_followed:
            self.admit(spec)
            self.record_run(spec)
        spec = ending.enter_context(self._with_rows(spec))
        launched_at = time.time() if left is None else left.launched_at
        try:
            folder = ending.enter_context(temporary_folder("step", spec.step))
            spec_path = folder / "spec.json"
            spec_path.write_text(spec.to_json())
            variables = {**spec.variables(), **variables_of_step(folder)}
        except OSError as error:
            raise HopsError(full_place(error) or f"the temporary folder cannot be used: {error}") from error
        if left is None:
            process = launcher.start(spec_path, spec.code_paths, variables=variables)
        else:
            process = launcher.resume(left.event, spec_path, variables=variables)
        ending.callback(process.discard)
        if left is not None and left.until is not None and time.time() >= left.until and process.poll() is None:
            process.kill(_PATIENCE_S)
            raise AirflowTaskTimeout(f"step {spec.step!r} was not over within the task's execution_timeout")
        if left is None and defer is not None and not self._killed and process.poll() is None:
            trigger = launcher.defer(process, Deferral(self.hops_conn_id, spec.producer, until))
            if trigger is not None:
                defer(trigger, LeftStep(spec.cache_key_parts, launched_at, until))
            self.log.info(WAITS_HERE)
        result = self.watch(spec.step, process, folder, on_line)
        result = replace(result, phases=(*process.phases, *result.phases))
        if is_followed:
            return result  # its times are those of the try that has started it
        # Start-up includes times that the step cannot measure: the JVM before its driver, the end of its process.
        work_s = result.seconds.get("work", 0.0)
        start_up_s = max(time.time() - launched_at - work_s, 0.0)
        seconds = {"start_up": round(start_up_s, 3), "work": work_s}
        return replace(result, seconds=seconds, ended_at=time.time())

    def show(self, line: Line) -> None:
        """Logs a line of a step's output at its level, and writes its progress."""
        if self.progress is not None:
            self.progress.hear(line)
        if line.progress is None:
            self.log.log(line.level, "%s", line.text)
        else:
            figures = "".join(f" {name}={value:.4g}" for name, value in line.metrics.items())
            self.log.info("%3.0f%% %s%s", 100 * line.progress, line.text, figures)


def _source_options(params: Mapping[str, object]) -> dict[str, dict[str, Any]]:
    """Returns the options of the connections that a step's sources or table name, by their ids."""
    # A written table has the URI scheme of the source that reads it, and so its connection.
    options = {
        conn_id: pkgutil.resolve_name(source_class(source["uri"]).connection_options)(conn_id)
        for source in _sources_in(params)
        if (conn_id := source.get("conn_id") or source.get("storage_conn_id"))
    }
    if options:
        mask_secret({**options})
    return options


def _sources_in(value: object, is_inside: bool = False) -> Iterator[Mapping[str, Any]]:
    """Yields the fields of all sources and tables in a step's parameters."""
    if isinstance(value, Mapping):
        if is_inside and "uri" in value:
            yield value
        for name, item in value.items():
            yield from _sources_in(item, is_inside or name in ("source", "sources", "table"))


def _inputs(spec: StepSpec) -> list[Artifact]:
    return [artifact for artifacts in spec.inputs.values() for artifact in artifacts]


def _fingerprint_of_json(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def warm_socket(runtime: Path) -> Path:
    """Returns the socket of a runtime environment's warm process.

    There is one for each user, each state of the package, and each set of variables that libraries read at import.
    """
    state = [str(runtime.resolve()), runtime_fingerprint(runtime), package_fingerprint(), import_settings()]
    return Path(tempfile.gettempdir()) / f"hops-warm-{os.getuid()}" / f"{_fingerprint_of_json(state)[:16]}.sock"
