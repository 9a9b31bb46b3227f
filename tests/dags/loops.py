"""A task group in a loop (Airflow 3.4): each iteration ingests its own file, and each of two more."""

from typing import Any

import airflow.sdk
from airflow.sdk import DAG, task, task_group

from airflow_hops.operators import IngestOperator

FOLDER = "{{ dag_run.conf['folder'] }}"


@task_group
def rounds() -> None:
    ingest = IngestOperator(
        task_id="ingest", sources={"rows": f"{FOLDER}/{{{{ loop.index }}}}.csv"}, retries=1, cache=False
    )
    each = IngestOperator.partial(task_id="each", cache=False).expand(
        sources=[{"rows": f"{FOLDER}/{name}.csv"} for name in ("a", "b")]
    )

    @task
    def take(artifact: dict[str, Any]) -> str:
        return str(artifact["uri"])

    @task.hops(output_kind="notes")
    def note(context: Any, number: int, artifact: dict[str, Any]) -> Any:
        with context.output() as writer:
            (writer.path / "note.txt").write_text(f"{number} {artifact['fingerprint']}")
            return writer.commit()

    # A loop's group ends with one task.
    [each, take(ingest.output)] >> note(number="{{ loop.index }}", artifact=ingest.output)


with DAG("loops", schedule=None):

    @task
    def collect(artifacts: Any) -> list[str]:
        return [artifact["uri"] for artifact in artifacts]

    if hasattr(airflow.sdk, "LoopDecision"):
        group = rounds.loop(max_iterations=3)
        collect(group.children["rounds.ingest"].output)
