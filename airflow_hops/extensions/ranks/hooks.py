"""Connection type ``horovod``: hosts for a training's ranks."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook

from airflow_hops.core.errors import HopsError
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.runner.ranks import where_ranks_run


class RanksHook(BaseHook):
    """Connection type ``horovod``: hosts for a training's ranks.

    Args:
        ranks_conn_id: The connection. Without hosts, it means this machine.

    Example:
        >>> from airflow_hops.extensions.ranks import RanksHook
        >>> RanksHook.conn_type
        'horovod'
    """

    conn_name_attr = "ranks_conn_id"
    default_conn_name = "horovod_default"
    conn_type = "horovod"
    hook_name = "Horovod hosts"

    def __init__(self, ranks_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ranks_conn_id = ranks_conn_id

    def test_connection(self) -> tuple[bool, str]:
        """Checks the Python of every host, as a training would; returns whether all can run ranks, and the findings."""
        from airflow_hops.runner.runtime import RuntimeHook

        try:
            where = where_ranks_run(self.ranks_conn_id, None)
            spec = StepSpec("hosts", "airflow_hops.extensions.ranks.ml.examine:run", params={"where": where})
            hosts = RuntimeHook().run(spec, cache=False, on_line=lambda line: None).value
        except HopsError as error:
            return False, str(error)
        return True, "; ".join(hosts)
