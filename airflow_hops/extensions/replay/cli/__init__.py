"""Commands of back-tests."""

from __future__ import annotations

from airflow_hops.cli.arguments import ARG_VERBOSE, STORE_CONNECTION, CLICommand, command, flag, option, repeated

_BACKTEST_ARGUMENTS = (
    option("model", "The model; its champion's pipeline is run again"),
    option("--from", "Start of the history, as 2013-01-01", dest="start", required=True),
    option("--to", "End of the history (exclusive)", dest="end", required=True),
    option("--every", "Length of a period, at whose end policies decide (default: 7d)", default="7d"),
    option("--first", "Length of the first model's training window (default: that of the champion's)"),
    repeated(
        "--policy",
        "never, monthly, weekly, drift, performance, module:attribute of a RetrainingPolicy or of the DAG of a "
        "retraining_loop, or a JSON file (can be repeated)",
        required=True,
    ),
    repeated("--code-path", "Folder of the modules of --policy (can be repeated; default: [core] dags_folder)"),
    repeated(
        "--label-delay",
        "Delay of labels after their rows, as 7d; candidates are trained on rows with labels. Policies that use "
        "labels are tried with each, others with the shortest (can be repeated; default: 0d)",
    ),
    option(
        "--price",
        "Gain of the metric, on average over the history, that a training must bring (default: 0)",
        type=float,
        default=0.0,
    ),
    option("--jobs", "Number of policies replayed in parallel (default: 1)", type=int, default=1),
    option("--output", "Folder to which the report and policy.json are copied"),
    flag("--json", "Print the report as JSON"),
    STORE_CONNECTION,
    ARG_VERBOSE,
)

COMMANDS: tuple[CLICommand, ...] = (
    command(
        "airflow_hops.extensions.replay.cli.backtest.backtest",
        "Evaluate retraining policies on past data",
        _BACKTEST_ARGUMENTS,
        "Runs the champion's own pipeline again, with its code, for each training that a "
        "policy would have asked for, and scores each model on the rows that came after it. Prints for "
        "each policy the metric on average, trainings, false alarms, cost, and regret against the best "
        "schedule in hindsight, and writes a report to the store, with policy.json of the policy that "
        "earned most. Trained models are stored: an interrupted back-test, or one of other policies, "
        "continues from there.",
    ),
)
