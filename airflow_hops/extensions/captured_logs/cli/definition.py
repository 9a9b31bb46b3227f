"""Command that adopts the model of an endpoint."""

from __future__ import annotations

from airflow_hops.cli.arguments import ARG_VERBOSE, STORE_CONNECTION, Arg, CLICommand, command, flag, option, repeated

_ARGUMENTS = (
    option("name", "Name for the model; the monitor is the DAG NAME_monitor"),
    option("--endpoint", "Its address: http://host:port, or sagemaker:NAME", required=True),
    option(
        "--captured",
        "Log of its requests: path, folder, glob or URI of JSON lines or Parquet, or delta://URI (default, of "
        "SageMaker: where it captures data)",
        metavar="LOG",
    ),
    option(
        "--layout",
        "Layout of the log (default: sagemaker for such an endpoint, else columns)",
        choices=("columns", "sagemaker", "databricks", "kserve"),
    ),
    repeated(
        "--field",
        "Field of the log for a field of CapturedSource, such as request_id=id, captured_at=time, "
        "version=model_version, request=body, response=answer, time_unit=ms (can be repeated)",
        metavar="NAME=VALUE",
    ),
    repeated(
        "--input", "Feature, and its field if the log has a field for each (can be repeated)", metavar="NAME[=FIELD]"
    ),
    repeated("--prediction", "Prediction, in the same way (can be repeated)", metavar="NAME[=FIELD]"),
    option(
        "--answer",
        "What a prediction of the log is, such as probability=predict (of the second of two classes) or "
        "prediction=predict (a number): successors can then be compared with the endpoint, and served beside it",
        metavar="OUTPUT=NAME",
    ),
    repeated("--label", "Label in the log, and its field (can be repeated)", metavar="NAME=FIELD"),
    repeated("--type", "Type of a captured column, such as input.age=float32 (can be repeated)", metavar="COLUMN=TYPE"),
    option("--version", "The log's name of the version to adopt (default: the only one)"),
    flag("--inputs-only", "Watch inputs alone: predictions are not captured"),
    option("--schedule", "How often to judge (default: @daily)", choices=("@hourly", "@daily"), default="@daily"),
    option("--reference-start", "Start of the reference window (default: the log's first row)", metavar="TIME"),
    option(
        "--reference-end",
        "End of the reference window, from which on the monitor judges (default: before the last complete hour or day)",
        metavar="TIME",
    ),
    option("--storage-conn-id", "Connection with the credentials of the log's store"),
    flag("--yes", "Adopt without asking"),
    Arg(("-o", "--output"), metavar="FOLDER", help="Folder of the DAG file (default: that of Airflow's DAGs)"),
    STORE_CONNECTION,
    ARG_VERBOSE,
)

COMMANDS: tuple[CLICommand, ...] = (
    command(
        "airflow_hops.extensions.captured_logs.cli.adopt.adopt",
        "Watch a model that an endpoint serves already, by the log of its requests",
        _ARGUMENTS,
        "Reads the log, shows the schema of its requests, and asks. Then writes the model's record with the rows of "
        "the reference window, and a DAG that compares each window of the log with them.",
    ),
)
