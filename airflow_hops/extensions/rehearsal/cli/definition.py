"""Command that rehearses the monitor of a model."""

from __future__ import annotations

from airflow_hops.cli.arguments import ARG_VERBOSE, STORE_CONNECTION, Arg, CLICommand, command, option, repeated

_ARGUMENTS = (
    option("model", "Name of the served model"),
    option("--every", "Length of a window, such as 1d or 6h (default: as the monitor compares)", metavar="TIME"),
    option("--tries", "Windows that each fault is planted into (default: 60)", type=int, default=60, metavar="N"),
    repeated("--feature", "Feature to plant faults into (default: all; can be repeated)", metavar="FEATURE"),
    option("--rows", "Rows to plant faults into (default: captured, if any)", choices=("captured", "training")),
    option("--policy", "JSON file of the retraining policy (default: RetrainingPolicy())", metavar="FILE"),
    option("--skew", "JSON file of SkewOperator's arguments (default: its newest run's)", metavar="FILE"),
    repeated(
        "--require",
        "Fault that must be found, such as 'amount: units within 1 day' or 'plan: missing 20%%' (can be repeated)",
        metavar="REQUIREMENT",
    ),
    option("--false-alarms", "Most false alarms, such as 1/month", metavar="RATE"),
    Arg(("-o", "--output"), metavar="FILE", help="Also write the report, as JSON, to this file"),
    STORE_CONNECTION,
    ARG_VERBOSE,
)

COMMANDS: tuple[CLICommand, ...] = (
    command(
        "airflow_hops.extensions.rehearsal.cli.rehearse.rehearse",
        "Say what a model's monitor would find, when, and what would slip through",
        _ARGUMENTS,
        "Plants faults into copies of the rows that a model was asked for, in growing sizes, and runs the monitor's "
        "own comparison and policy. Changes nothing. Ends with 1 if a requirement does not hold.",
    ),
)
