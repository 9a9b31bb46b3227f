"""Command that writes a project."""

from __future__ import annotations

from argparse import BooleanOptionalAction

from airflow_hops.cli.arguments import ARG_VERBOSE, Arg, CLICommand, command, flag, option, repeated

_INIT_ARGUMENTS = (
    option("name", "Name of the project: its package, its model, and the prefix of its DAG ids"),
    option("--from", "CSV (also compressed) or Parquet: path or URI", dest="from_", required=True, metavar="FILE"),
    option("--label", "Column to predict", required=True, metavar="COLUMN"),
    option("--key", "Column that identifies a row (default: guessed)", metavar="COLUMN"),
    option("--time", "Column of a row's time (default: guessed)", metavar="COLUMN"),
    option("--weight", "Column of a row's weight in training (default: none)", metavar="COLUMN"),
    option(
        "--problem",
        "Type of the problem (default: determined from the label's values)",
        choices=("binary", "multiclass", "regression"),
    ),
    repeated("--drop", "Column to leave out (can be repeated)", metavar="COLUMN"),
    repeated(
        "--keep",
        "Column to keep as a feature even if it alone determines the label (can be repeated)",
        metavar="COLUMN",
    ),
    repeated(
        "--missing",
        "Text that stands for a missing value in a CSV file, such as -999 (can be repeated; default: recognised)",
        metavar="TEXT",
    ),
    repeated(
        "--type",
        "Type of a column, such as zip=string, score=float64 or, for dates, at=%%d/%%m/%%Y (can be repeated; "
        "default: inferred)",
        metavar="COLUMN=TYPE",
    ),
    option("--decimal", "Decimal mark of a CSV file (default: recognised)", choices=(".", ",")),
    option("--thousands", "Mark between thousands in a CSV file (default: recognised)", metavar="MARK"),
    repeated(
        "--unit",
        "Unit beside the numbers of a CSV file, such as kg (can be repeated; default: signs of money and percent are "
        "recognised)",
        metavar="TEXT",
    ),
    option("--quote", "Quote of a CSV file; empty if it has none (default: recognised)", metavar="MARK"),
    option(
        "--escape",
        "Character that escapes quotes in a CSV file; empty if they are doubled (default: recognised)",
        metavar="MARK",
    ),
    Arg(
        ("--batch",),
        action=BooleanOptionalAction,
        help="Whether the model scores tables, and never listens on a port (default: asked on a terminal; else no)",
    ),
    flag("--spark", "Prepare on Spark, which needs Java, instead of DuckDB"),
    option("--encoding", "Encoding of a CSV file (default: utf8)", default="utf8"),
    Arg(
        ("-o", "--output"),
        metavar="FOLDER",
        help="Folder in which to create the project's folder (default: that of Airflow's DAGs)",
    ),
    option("--hops-conn-id", "Connection of type hops", default="hops_default"),
    ARG_VERBOSE,
)

COMMANDS: tuple[CLICommand, ...] = (
    command(
        "airflow_hops.extensions.projects.cli.init.init",
        "Create a project that trains, serves and monitors a model of your data",
        _INIT_ARGUMENTS,
        "Reads the file, guesses key, time, features and problem, prints them, and writes "
        "the DAGs, their functions and a test. Writes nothing if something cannot be used.",
    ),
)
