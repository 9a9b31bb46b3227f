"""Runs steps as operators do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from waiting import wait_for

REPOSITORY = Path(__file__).resolve().parent.parent
WARM_PROCESSES: list[Any] = []
"""Kept for as long as this process: Python complains of a process that it forgets while it runs."""


class StepRunner:
    """Runs steps as real processes through the runtime hook, in one store."""

    def __init__(self, root: str, runtime: Path, storage_options: Mapping[str, Any] | None = None) -> None:
        from airflow_hops.core.store import ArtifactStore

        self.store = ArtifactStore(root, storage_options=storage_options)
        self.store.make()
        self.runtime = runtime
        self.lines: list[Any] = []
        self.count = 0

    def __call__(
        self,
        entry: str,
        *,
        params: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        kind: str | None = None,
        code_paths: tuple[str, ...] = (),
        launcher: Any = None,
        services: Mapping[str, str] | None = None,
        dag_id: str = "tests",
        task_id: str | None = None,
        run_id: str | None = None,
    ) -> Any:
        """Runs ``entry``; returns its Artifact or value, raises StepFailed. ``self.lines`` holds the output."""
        from dataclasses import replace

        from airflow_hops.core.artifacts.artifact import Artifact, Producer
        from airflow_hops.core.steps.protocol import Output, StepSpec
        from airflow_hops.runner.runtime import RuntimeHook

        self.count += 1
        hook = RuntimeHook()
        settings = replace(hook.settings, store=self.store.root, storage_options=self.store.storage_options)
        own = {name: settings.services[name] for name in ("tracking_uri", "serving_host", "serving_port")}
        settings = replace(settings, services={**own, **(services or {})})
        hook.__dict__["settings"] = settings
        run_id = run_id or f"run-{self.count}"
        producer = Producer(dag_id, run_id, task_id or entry.rpartition(".")[2].replace(":", "-"))
        self.last_uri = self.store.address(producer, kind) if kind else None
        spec = StepSpec(
            step=producer.task_id,
            entry=entry,
            params=params or {},
            inputs={role: tuple(v) if isinstance(v, list | tuple) else (v,) for role, v in (inputs or {}).items()},
            output=Output(self.last_uri, kind) if kind and self.last_uri else None,
            producer=producer,
            code_paths=code_paths,
        )
        self.lines = []
        result = hook.run(spec, launcher=launcher, cache=False, on_line=self.lines.append)
        return Artifact.from_dict(result.value) if result.is_artifact else result.value

    def transformed_examples(self, launcher: Any, train: int = 300, eval: int = 100, **told: Any) -> Any:
        """Writes an artifact of transformed examples, of so many rows."""
        rows, code = {"train": [train], "eval": [eval]}, (str(REPOSITORY / "tests" / "steps"),)
        kind, entry = "transformed_examples", "transformed_examples:write"
        return self(entry, params={"rows": rows}, kind=kind, code_paths=code, launcher=launcher, **told)


def warm_launcher_in(folder: Path, runtime: Path) -> Any:
    """A launcher of steps that are forked from a warm process, which ends when its folder is removed."""
    import subprocess

    from airflow_hops.core.processes.files import locked
    from airflow_hops.runner.launchers.local import LocalLauncher
    from airflow_hops.runner.launchers.warm import WarmStart, warm_command, warm_variables

    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / "socket"
    with locked(folder / "lock"):
        if not path.exists():
            # Minutes lie between the tests that use it.
            command = [*warm_command(runtime / "bin" / "python", path), "--idle-timeout-s", "3600"]
            process = subprocess.Popen(command, env={**warm_variables(), "TMPDIR": str(folder)}, cwd="/")
            wait_for(lambda: path.exists() or process.poll() is not None, "the warm process is ready", 600)
            assert path.exists(), "the warm process did not start"
            WARM_PROCESSES.append(process)
    return LocalLauncher(runtime, WarmStart(path))
