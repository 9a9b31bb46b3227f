"""Base class of the operators whose steps run on Spark."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_hops.core.redaction import masked
from airflow_hops.operators.base import HopsOperator
from airflow_hops.runner.launchers.base import Launcher
from airflow_hops.runner.runtime import RuntimeHook


class SparkOperator(HopsOperator):
    """Arguments of the operators whose steps run on Spark.

    Args:
        conf: Spark properties. (templated)
        **kwargs: As :class:`~airflow_hops.operators.base.HopsOperator`.
    """

    template_fields: Sequence[str] = (*HopsOperator.template_fields, "conf")

    def __init__(self, *, conf: Mapping[str, str | float] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conf = conf
        self.check_arguments(SparkOperator)

    @property
    def uses_spark(self) -> bool:
        """Returns whether the step runs where the Spark connection says."""
        return True

    def step_cache_key_parts(self, hook: RuntimeHook) -> dict[str, str]:
        """Adds the Spark properties, some of which change results (``spark.sql.ansi.enabled``)."""
        conf = dict(self.conf or {})
        shown = masked(conf)
        secret = hashlib.sha256(json.dumps(conf, sort_keys=True).encode()).hexdigest()
        return {"conf": json.dumps(shown, sort_keys=True), **({} if shown == conf else {"secrets of conf": secret})}

    def launcher(self, hook: RuntimeHook) -> Launcher | None:
        """Returns the Spark launcher of the connection; with a local master, Spark runs where other steps do."""
        step_launcher = super().launcher(hook)
        if not self.uses_spark:
            return step_launcher
        conn_id = hook.settings.spark_conn_id
        return hook.make_launcher("spark", conn_id=conn_id, conf=self.conf, step_launcher=step_launcher)
