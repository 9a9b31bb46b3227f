"""Operator that computes TFDV's statistics of examples or of any files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow_hops.core.processes.remote_files import is_remote
from airflow_hops.core.sources.sources import Source
from airflow_hops.operators.base import HopsOperator
from airflow_hops.operators.links import DATA_LINK, LINEAGE_LINK
from airflow_hops.operators.spark import SparkOperator
from airflow_hops.runner.arguments import FolderName
from airflow_hops.runner.connections import state_of_sources
from airflow_hops.runner.launchers.base import Launcher
from airflow_hops.runner.runtime import RuntimeHook

if TYPE_CHECKING:
    from airflow.sdk import Context


class StatisticsOperator(SparkOperator):
    """Computes the TFDV statistics of every split of ``examples``, or of a source.

    The artifact ``statistics`` holds ``<split>/FeatureStats.pb``, ``<split>/statistics.json`` and
    ``<split>/sample.parquet``, a uniform sample of the rows, which drift is judged by.

    Example::

        statistics = StatisticsOperator(
            task_id="statistics", examples=examples.output, options={"slice_by": ["carrier"]}
        )

    Args:
        examples: The output of ``PrepareOperator``. (templated)
        source: Instead of ``examples``, any files: a path, glob, folder or URI, a
            :class:`~airflow_hops.core.sources.sources.Source` or its fields. (templated)
        splits: Splits of ``examples``; None for all. (templated)
        split: Name of the only split of a ``source``.
        label: Label column of a ``source``; examples name their own.
        key: Column of a ``source`` that identifies a row; like the key of examples, it is left out.
        time: Time column of a ``source``.
        schema: The output of ``SchemaOperator``, which says what integers are categories. (templated)
        options: TFDV's options as JSON, as :func:`airflow_hops.ml.statistics.options.options_from` reads
            them. (templated)
        engine: ``local``, this machine; ``spark``; or ``auto``: Spark if the connection's master is a cluster,
            ``processes`` is None and a ``source`` is not a local path, else this machine.
        processes: Processes on this machine; None for one below 8 MB and one per core above.
        sample_rows: Maximum rows of each split's sample; 0 for none. Without a sample, drift is judged by the schema's
            thresholds alone.
        **kwargs: As :class:`~airflow_hops.operators.spark.SparkOperator`.

    Raises:
        ValueError: Neither or both of ``examples`` and ``source`` are set, or an argument has an unknown value.
    """

    entry = "airflow_hops.ml.statistics.stage:run"
    output_kind: ClassVar[str | None] = "statistics"
    input_arguments = ("examples", "schema")
    template_fields: Sequence[str] = (*SparkOperator.template_fields, *input_arguments, "source", "splits", "options")
    operator_extra_links = (DATA_LINK, LINEAGE_LINK)

    def __init__(
        self,
        *,
        examples: Any = None,
        source: Source | str | Mapping[str, Any] | None = None,
        splits: Sequence[str] | None = None,
        split: FolderName = "data",
        label: str | None = None,
        key: str | None = None,
        time: str | None = None,
        schema: Any = None,
        options: Mapping[str, Any] | None = None,
        engine: Literal["auto", "local", "spark"] = "auto",
        processes: int | None = None,
        sample_rows: int = 20_000,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.examples = examples
        self.source = source
        self.splits = splits
        self.split = split
        self.key = key
        self.time = time
        self.schema = schema
        self.options = options
        self.engine = engine
        self.processes = processes
        self.sample_rows = sample_rows
        self.check_arguments(StatisticsOperator, label=label)
        self.source = source.to_dict() if isinstance(source, Source) else source
        # Airflow's operators already have a ``label``, which the UI shows.
        self.label_column = label
        if (self.examples is None) == (self.source is None):
            number = "neither" if self.examples is None else "both"
            raise ValueError(f"expected exactly one of examples and source, found {number}")
        if self.source is None and (self.label_column or self.key or self.time):
            raise ValueError("label, key and time describe a source; those of examples are known")
        if self.source is not None and self.splits is not None:
            raise ValueError("splits are those of examples; a source has one, which 'split' names")
        if self.processes is not None and (self.engine == "spark" or self.processes < 1):
            raise ValueError(
                f"processes is {self.processes} with engine={self.engine!r}; expected 1 or more, and 'local'"
            )
        if self.sample_rows < 0:
            raise ValueError(f"sample_rows is {self.sample_rows}; expected 0 or more")

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the source and the options."""
        return {
            "splits": list(self.splits) if self.splits else None,
            "source": self._source_fields(),
            "options": self.options,
            "engine": self.engine,
            "processes": self.processes,
            "sample_rows": self.sample_rows,
        }

    def step_cache_key_parts(self, hook: RuntimeHook) -> dict[str, str]:
        """Adds the state of the source's files, so that changed files are read again."""
        if self.source is None:
            return {}
        return {"source": state_of_sources({"source": Source.from_value("source", self.source)})}

    def launcher(self, hook: RuntimeHook) -> Launcher | None:
        """Returns the Spark launcher if ``engine`` or the connection's cluster wants it, or that of other steps."""
        if self.engine == "spark":
            return super().launcher(hook)
        launcher = None
        if self.engine == "auto" and self.processes is None:
            launcher = hook.cluster_launcher(self.conf)
        if launcher is not None and self.source is not None:
            uri = Source.from_value("source", self.source).uri
            if not is_remote(uri):
                self.log.info("%s is read on this machine; if executors see it too, set engine='spark'", uri)
                launcher = None
        return launcher or HopsOperator.launcher(self, hook)

    def _source_fields(self) -> dict[str, Any] | None:
        if self.source is None:
            return None
        # A plain path is read as TFDV reads it: only the empty text is a missing value.
        place = self.source if isinstance(self.source, str) else Source.from_value("source", self.source).to_dict()
        columns = {"label": self.label_column, "key": self.key, "time": self.time}
        return {"source": place, "split": self.split, **columns}
