"""``airflow hops models``: decisions on what serves, without a DAG."""

from __future__ import annotations

import getpass
import uuid
from argparse import Namespace

from airflow.utils.cli import suppress_logs_and_warning

from airflow_hops.core.contract.artifacts import Producer
from airflow_hops.core.contract.protocol import StepSpec
from airflow_hops.hooks.model_server import model_server_services
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.reports.kept_cards import keep_cards


@suppress_logs_and_warning
def replace(args: Namespace) -> None:
    """Makes a model the champion, whatever comparisons say of it."""
    if not args.reason.strip():
        raise SystemExit("--reason is empty; say why: it is kept with the model")
    request_id, who = uuid.uuid4().hex, args.by or getpass.getuser()
    hook = RuntimeHook(args.hops_conn_id)
    dag_id = hook.store.manifest(args.uri).producer.dag_id
    spec = StepSpec(
        step="replace_champion",
        entry="airflow_hops.ml.stages.deploy.traffic:replace_champion",
        params={
            "model_name": args.model,
            "model": args.uri,
            "reason": args.reason,
            "by": {"dag_id": dag_id, "user": who, "request_id": request_id},
        },
        producer=Producer(dag_id, f"cli__{request_id}", "replace"),
        services=model_server_services(args.conn_id),
    )
    outcome = hook.run(spec, cache=False, on_line=lambda line: print(line.text)).value
    if not outcome["changed"]:
        print(f"This model is the champion of {args.model!r} already, version {outcome['champion']}.")
        return
    print(f"Version {outcome['champion']} is the champion of {args.model!r} now.")
    if problem := keep_cards(hook.store, args.model, lambda dag_id: None):
        print(problem)
