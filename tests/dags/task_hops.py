"""Functions that run in the runtime environment, for the tests of ``@task.hops``."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, task, task_group

from airflow_hops.operators import IngestOperator

if TYPE_CHECKING:
    import pandas as pd

with DAG("task_hops", schedule=None) as dag:

    @task.hops
    def squares(count: int, *, offset: float = 0.5) -> dict:
        """Square numbers, by an array library that is not in Airflow's environment."""
        import numpy as np
        from task_hops_module import double

        # A comment in the middle.
        values = np.arange(double(count)) ** 2 + offset
        print(f"computed {len(values)} squares")
        return {"sum": float(values.sum()), "environment": __import__("sys").prefix, "values": values.tolist()}

    @task.hops(task_id="report", output_kind="report", retries=0)
    def write_report(context, total: float, table: pd.DataFrame | None = None, ds: str | None = None) -> Any:
        context.progress(0.5, "halfway", {"total": total})
        with context.output() as writer:
            (writer.path / "report.txt").write_text(f"{total} on {ds}")
            return writer.commit(metrics={"total": total})

    @task.hops
    def read_report(context, report: dict, names: list) -> list:
        from airflow_hops.core.artifacts.artifact import Artifact

        text = (context.store.local(Artifact.from_dict(report)) / "report.txt").read_text()
        return [context.local("report").name, text, *names]

    counted = squares(2, offset=1.125)
    written = write_report(counted["sum"])
    read_report(written, ["{{ ti.task_id }}", "b"])

with DAG("task_hops_mapped", schedule=None):

    @task.hops
    def half(number: int) -> float:
        return number / 2

    @task.hops
    def total(numbers: list) -> float:
        return sum(numbers)

    total(half.expand(number=[1, 2, 3]))

with DAG("mapped_sources", schedule=None, params={"folder": ""}):

    @task
    def files(params: dict[str, Any]) -> list[Any]:
        return [f"{params['folder']}/a.csv", {"uri": f"{params['folder']}/b.csv"}]

    @task
    def tables(params: dict[str, Any]) -> dict[str, str]:
        return {"rows": f"{params['folder']}/a.csv"}

    @task_group
    def of_each(source: Any) -> None:
        IngestOperator(task_id="ingest", sources={"rows": source})

    of_each.expand(source=files())
    IngestOperator(task_id="ingest", sources=tables())

with DAG("task_hops_bad_argument", schedule=None):

    @task
    def now() -> Any:
        from datetime import UTC, datetime

        return datetime(2026, 1, 1, tzinfo=UTC)

    @task.hops(retries=3)
    def take(at: Any) -> str:
        return str(at)

    take(now())

with DAG("task_hops_hangs", schedule=None, render_template_as_native_obj=True):

    @task.hops(execution_timeout=timedelta(seconds=6))
    def hang(folder: str) -> None:
        import os
        import signal
        import time
        from pathlib import Path

        def stay(name: str) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            (Path(folder) / name).write_text(str(os.getpid()))
            time.sleep(600)

        if os.fork() == 0:
            os.setsid()
            stay("child")
        print("hangs", flush=True)
        stay("step")

    hang("{{ dag_run.conf['folder'] }}")
