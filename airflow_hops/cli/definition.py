"""Commands of ``airflow hops``. Airflow imports this at each start of its CLI, so it imports nothing slow."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from airflow_hops.airflow_internals.cli_config import (
    ARG_OUTPUT,
    ARG_VERBOSE,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
)


def _option(name: str, help: str, **more: Any) -> Arg:
    return Arg((name,), help=help, **more)


def _flag(name: str, help: str) -> Arg:
    return Arg((name,), help=help, action="store_true")


def _repeated(name: str, help: str, **more: Any) -> Arg:
    return Arg((name,), help=help, action="append", default=[], **more)


def _command(
    function: str, help: str, args: tuple[Arg, ...], description: str | None = None, name: str | None = None
) -> ActionCommand:
    """Returns the command of a function of ``airflow_hops.cli``; errors end the program with their message."""
    command = lazy_load_command(f"airflow_hops.cli.{function}")

    def run(parsed: Namespace) -> None:
        from airflow_hops.connections import connections_of_tasks
        from airflow_hops.core.contract.artifacts import HopsError

        try:
            with connections_of_tasks():
                command(parsed)
        except (HopsError, OSError) as error:
            raise SystemExit(str(error)) from None
        except KeyboardInterrupt:
            raise SystemExit(130) from None

    return ActionCommand(
        name=name or function.partition(".")[2], help=help, description=description, func=run, args=args
    )


_PATH = _option(
    "path",
    "Folder of the runtime environment (default: the configured one, or hops-runtime in AIRFLOW_HOME)",
    nargs="?",
)
_PYTHON = _option(
    "--python",
    "Python to use: 3.11 for the profile base, 3.12 or 3.13 for current (default: the one that runs Airflow, otherwise "
    "one that uv finds or downloads)",
)
_FORCE = _flag("--force", "Delete an existing environment and create it again")
_HOPS_CONNECTION = _option("--hops-conn-id", "Connection of type hops to check", default="hops_default")
_STORE_CONNECTION = _option(
    "--hops-conn-id", "Connection of type hops that has the artifact store", default="hops_default"
)
_DAG = _option("dag_id", "The pipeline's DAG")
_NAME = _option("name", "Name of the frozen schema (by default the id of its task)")
_VERSION = _option("--version", "Version of the schema (default: the one in force)", type=int)
_SERVER_CONNECTION = _option(
    "--conn-id", "Connection of type hops or model_server (default: hops_default)", default="hops_default"
)
_FLAGS = _option("flags", "Additional flags for the server, after --", nargs="*")
_SPARK_CONNECTION = _option("--spark-conn-id", "Spark connection to check", default="spark_default")

_RUNTIME_PATH = _option("--path", "Folder of the runtime environment (default: as for 'create')")
_RUNTIME_NAME = _option("--name", "Named environment, which adds packages to the runtime environment")
_REQUIREMENT = _option("requirement", "Requirement in pip's format, such as scikit-image or shap==0.46", nargs="+")

_RUNTIME_COMMANDS = (
    _command(
        "runtime.create",
        "Create the runtime environment with pinned packages, or a named environment on top of it",
        (
            _PATH,
            _RUNTIME_NAME,
            _repeated(
                "--with",
                "Package to add to the environment, in pip's format, such as torch (can be repeated)",
                dest="requirement",
            ),
            _option(
                "--profile",
                "Set of pinned libraries: current from glibc 2.39 on, or base (default: that of an existing "
                "environment, otherwise the newest that this machine can run)",
                choices=["base", "current"],
            ),
            _PYTHON,
            _flag(
                "--cuda",
                "Install the CUDA libraries that TensorFlow requires, and Horovod with NCCL (kept until --force)",
            ),
            _FORCE,
        ),
        "Installs TensorFlow, TFDV, Horovod, Spark and MLflow into a separate environment. A valid "
        "environment is kept; an interrupted installation is completed. With --name, creates an environment that "
        "adds packages without changing those of the runtime environment; a task with runtime=NAME runs in it.",
    ),
    _command(
        "runtime.show",
        "List the runtime environment and the named environments, with their CUDA versions",
        (_RUNTIME_PATH, ARG_OUTPUT, ARG_VERBOSE),
        name="list",
    ),
    _command(
        "runtime.install",
        "Install additional packages, without changing the pinned ones",
        (_REQUIREMENT, _RUNTIME_NAME, _RUNTIME_PATH),
        "Installs packages that your code imports in steps. Run it on every machine that runs steps. "
        "'create' keeps the packages.",
    ),
    _command(
        "runtime.remove",
        "Remove a named environment, or packages from it",
        (
            _option("package", "Packages to remove (default: the whole environment)", nargs="*"),
            _option("--name", "Name of the environment", required=True),
            _RUNTIME_PATH,
        ),
    ),
    _command(
        "runtime.search",
        "Show the versions of packages that are compatible with the runtime environment, and their dependencies",
        (_REQUIREMENT, _RUNTIME_PATH),
    ),
    _command(
        "runtime.freeze", "Print the packages of an environment with their versions", (_RUNTIME_NAME, _RUNTIME_PATH)
    ),
    _command(
        "runtime.pack",
        "Pack the environment with its Python into an archive for the executors of a Spark cluster",
        (
            _option("target", "The .tar.gz file to write: a path, or a URI such as s3://bucket/runtime.tar.gz"),
            _RUNTIME_NAME,
            _RUNTIME_PATH,
            _STORE_CONNECTION,
        ),
        "The archive has all packages, Horovod included, and works in any folder of hosts with the same operating "
        "system. Name it in the field runtime_archive of the Spark connection's extra. Pack it again when the "
        "environment's packages change.",
    ),
    _command("runtime.path", "Print the folder of the runtime environment", ()),
)

_BY = _option("--by", "Name of the person who approves it (default: the operating system's user)")
_NOTE = _option("--note", "Reason, for the history", default="")
_BEFORE = _option("before", "A version (default: the last but one), or a file (without the second argument)", nargs="?")
_AFTER = _option("after", "Another version, or a file (default: the version in force)", nargs="?")
_FILE = _option("file", "The new schema as protobuf text: a path, or the URI of a file in the store")

_SCHEMA_COMMANDS = (
    _command("schema.show", "Print a frozen schema as protobuf text", (_DAG, _NAME, _VERSION, _STORE_CONNECTION)),
    _command(
        "schema.history",
        "List the versions of a frozen schema, with time, approver, reason and run",
        (_DAG, _NAME, _STORE_CONNECTION, ARG_OUTPUT, ARG_VERBOSE),
    ),
    _command(
        "schema.diff",
        "Show the differences between two versions of a frozen schema, or between it and a file",
        (_DAG, _NAME, _BEFORE, _AFTER, _STORE_CONNECTION, ARG_VERBOSE),
    ),
    _command(
        "schema.approve",
        "Publish a schema.pbtxt as the new frozen schema",
        (_DAG, _NAME, _FILE, _BY, _NOTE, _STORE_CONNECTION, ARG_VERBOSE),
        "The previous schema stays in the history. The next run validates and transforms with the new one.",
    ),
    _command(
        "schema.reset",
        "Make the next run infer the schema again",
        (_DAG, _NAME, _BY, _NOTE, _STORE_CONNECTION, ARG_VERBOSE),
        "The previous schema stays in force until then, and remains in the history.",
    ),
    _command(
        "schema.revert",
        "Publish an earlier version again",
        (_DAG, _NAME, _option("version", "Its number", type=int), _BY, _NOTE, _STORE_CONNECTION, ARG_VERBOSE),
    ),
)

_STORE_COMMANDS = (
    _command(
        "store.verify",
        "Read all artifacts, and list the files that do not match their manifests",
        (
            _option(
                "prefix",
                "URI of an artifact or of a folder of artifacts, or its path in the store, such as <dag>/<run> "
                "(default: the whole store)",
                nargs="?",
            ),
            _STORE_CONNECTION,
            ARG_OUTPUT,
            ARG_VERBOSE,
        ),
        "Compares the SHA-256 of every file with the artifact's manifest. Exits with 1 if a file is missing or "
        "differs.",
    ),
    _command(
        "store.gc",
        "List the artifacts, finished or not, captured requests and MLflow runs that nothing needs, or remove them",
        (
            _flag("--delete", "Remove them (default: only list them)"),
            _option("--keep-days", "Keep what is younger, in days (default: 30)", type=float, default=30.0),
            _option("--keep-runs", "Keep so many newest runs of each DAG (default: 10)", type=int, default=10),
            _option("--keep-versions", "Keep so many former champions of each model (default: 3)", type=int, default=3),
            _flag("--unknown-runs", "Also remove artifacts of runs that this Airflow does not know"),
            _flag("--kept", "List what is kept, each with the reason, instead"),
            _STORE_CONNECTION,
            ARG_OUTPUT,
            ARG_VERBOSE,
        ),
        "Keeps everything that a champion, a challenger, a former champion, a frozen schema, the newest decision of a "
        "retraining monitor, an active run or a run that the options keep needs, down to the raw snapshot.",
    ),
)

_DATASET = _option("dataset", "Data set: [ORGANISATION/]NAME@VERSION")
_SHARING_RUNTIME = _option("--runtime", "Named environment with libtorrent (default: sharing)", default="sharing")

_DATASET_COMMANDS = (
    _command(
        "datasets.publish",
        "Publish a snapshot or examples artifact as the next version of a data set",
        (
            _option("artifact", "URI of the artifact, or its path in the store"),
            _option("--name", "Name of the data set", required=True),
            _option("--licence", "Licence: an SPDX identifier, such as CC-BY-4.0, or a text", required=True),
            _option("--description", "One paragraph about the data", required=True),
            _option("--card", "Markdown file with a longer description", metavar="FILE"),
            _option(
                "--sample-rows",
                "Rows of each table that anybody may see before a download (default: 10)",
                type=int,
                default=10,
            ),
            _SHARING_RUNTIME,
            _STORE_CONNECTION,
            ARG_VERBOSE,
        ),
        "Run it on the machine of the daemon. Computes statistics and a schema, and signs the entry with the key of "
        "this organisation.",
    ),
    _command("datasets.unpublish", "Stop sharing a version of a data set", (_DATASET, _STORE_CONNECTION, ARG_VERBOSE)),
    _command(
        "datasets.show_list",
        "List the data sets that this organisation shares and fetches",
        (_STORE_CONNECTION, ARG_OUTPUT, ARG_VERBOSE),
        name="list",
    ),
    _command(
        "datasets.peers",
        "List the trusted organisations, their catalogues, and the rates to and from them",
        (_STORE_CONNECTION, ARG_OUTPUT, ARG_VERBOSE),
    ),
    _command(
        "datasets.search",
        "Search the catalogues of all trusted organisations",
        (
            _option("text", "Words, and conditions such as rows>1000 or delay.mean>5 (default: all)", nargs="*"),
            _STORE_CONNECTION,
            ARG_OUTPUT,
            ARG_VERBOSE,
        ),
    ),
    _command(
        "datasets.show",
        "Show the schema, statistics and sample rows of a data set without downloading it",
        (_DATASET, _flag("--json", "Print it as JSON"), _STORE_CONNECTION, ARG_VERBOSE),
    ),
    _command("datasets.download", "Fetch a data set into the store", (_DATASET, _STORE_CONNECTION, ARG_VERBOSE)),
    _command(
        "datasets.verify",
        "Read the files of a fetched data set again, and compare their checksums",
        (_DATASET, _STORE_CONNECTION, ARG_OUTPUT, ARG_VERBOSE),
        "Exits with 1 if a file is missing or differs.",
    ),
    _command(
        "datasets.remove",
        "Remove a fetched data set from the store and the daemon's disk",
        (_DATASET, _STORE_CONNECTION, ARG_VERBOSE),
    ),
    _command(
        "datasets.keys",
        "Print the keys of this and of the trusted organisations; create or change them",
        (
            _flag("--create", "Create the key and the settings of this organisation"),
            _option("--organisation", "Name of this organisation, for --create"),
            _option("--trust", "Trust an organisation, as NAME=KEY"),
            _option("--catalogue", "Address of its catalogue, for --trust: https://HOST/hops/catalogue"),
            _repeated("--address", "Host from which it connects, if not that of its catalogue (can be repeated)"),
            _option("--distrust", "Name of an organisation that is not to be trusted any more"),
            ARG_OUTPUT,
            ARG_VERBOSE,
        ),
    ),
    _command(
        "datasets.serve",
        "Run the daemon that shares and fetches data sets",
        (_SHARING_RUNTIME, _STORE_CONNECTION),
        "Runs in the foreground, in the named environment. Listens at 127.0.0.1 unless settings.toml says otherwise.",
    ),
)


_INIT_ARGUMENTS = (
    _option("name", "Name of the project: its package, its model, and the prefix of its DAG ids"),
    _option("--from", "CSV (also compressed) or Parquet: path or URI", dest="from_", required=True, metavar="FILE"),
    _option("--label", "Column to predict", required=True, metavar="COLUMN"),
    _option("--key", "Column that identifies a row (default: guessed)", metavar="COLUMN"),
    _option("--time", "Column of a row's time (default: guessed)", metavar="COLUMN"),
    _option("--weight", "Column of a row's weight in training (default: none)", metavar="COLUMN"),
    _option(
        "--problem",
        "Type of the problem (default: determined from the label's values)",
        choices=("binary", "multiclass", "regression"),
    ),
    _repeated("--drop", "Column to leave out (can be repeated)", metavar="COLUMN"),
    _repeated(
        "--keep",
        "Column to keep as a feature even if it alone determines the label (can be repeated)",
        metavar="COLUMN",
    ),
    _repeated(
        "--type",
        "Type of a column, such as zip=string, score=float64 or, for dates, at=%%d/%%m/%%Y (can be repeated; "
        "default: inferred)",
        metavar="COLUMN=TYPE",
    ),
    _option("--decimal", "Decimal mark of a CSV file (default: recognised)", choices=(".", ",")),
    _option("--thousands", "Mark between thousands in a CSV file (default: recognised)", metavar="MARK"),
    _option("--quote", "Quote of a CSV file; empty if it has none (default: recognised)", metavar="MARK"),
    _option(
        "--escape",
        "Character that escapes quotes in a CSV file; empty if they are doubled (default: recognised)",
        metavar="MARK",
    ),
    _option("--encoding", "Encoding of a CSV file (default: utf8)", default="utf8"),
    Arg(
        ("-o", "--output"),
        metavar="FOLDER",
        help="Folder in which to create the project's folder (default: [core] dags_folder)",
    ),
    _option("--hops-conn-id", "Connection of type hops", default="hops_default"),
    ARG_VERBOSE,
)

_SEARCH_ARGUMENTS = (
    _DAG,
    _option("study", "Name of a study: the DAG run's id, unless the task gives another", nargs="?"),
    _option("--task", "Searching task, if several tasks have a study of that name"),
    _flag("--follow", "Show the progress until the search ends (default: newest study)"),
    _option(
        "--stop",
        "Stop running trials by number, or the search without a number (default: of the newest study)",
        nargs="*",
        type=int,
        metavar="TRIAL",
    ),
    _STORE_CONNECTION,
    ARG_OUTPUT,
    ARG_VERBOSE,
)


_REPRODUCE_ARGUMENTS = (
    _option(
        "run", "MLflow's id of a run, a registered version as MODEL/VERSION, or an artifact's URI or path in the store"
    ),
    _option(
        "--tolerance",
        "Difference of metrics and predictions that counts as the same (default: 0.001)",
        type=float,
        default=1e-3,
    ),
    _option(
        "--environment",
        "Environment to run in: one with the recorded versions, which is created if necessary, or the present "
        "one (default: lock)",
        choices=("lock", "present"),
        default="lock",
    ),
    _flag("--incomplete", "Also reproduce a training without a record, with the present code and environment"),
    _flag("--json", "Print the comparison as JSON"),
    _option("--runtime", "Named environment to start from (default: the connection's)"),
    _STORE_CONNECTION,
    ARG_VERBOSE,
)

_BACKTEST_ARGUMENTS = (
    _option("model", "The model; its champion's pipeline is run again"),
    _option("--from", "Start of the history, as 2013-01-01", dest="start", required=True),
    _option("--to", "End of the history (exclusive)", dest="end", required=True),
    _option("--every", "Length of a period, at whose end policies decide (default: 7d)", default="7d"),
    _option("--first", "Length of the first model's training window (default: that of the champion's)"),
    _repeated(
        "--policy",
        "never, monthly, weekly, drift, performance, module:attribute of a RetrainingPolicy or of the DAG of a "
        "retraining_loop, or a JSON file (can be repeated)",
        required=True,
    ),
    _repeated("--code-path", "Folder of the modules of --policy (can be repeated; default: [core] dags_folder)"),
    _repeated(
        "--label-delay",
        "Delay of labels after their rows, as 7d; candidates are trained on rows with labels. Policies that use "
        "labels are tried with each, others with the shortest (can be repeated; default: 0d)",
    ),
    _option(
        "--price",
        "Gain of the metric, on average over the history, that a training must bring (default: 0)",
        type=float,
        default=0.0,
    ),
    _option("--jobs", "Number of policies replayed in parallel (default: 1)", type=int, default=1),
    _option("--output", "Folder to which the report and policy.json are copied"),
    _flag("--json", "Print the report as JSON"),
    _option("--spark-conn-id", "Connection of the steps that run on Spark", default="spark_default"),
    _STORE_CONNECTION,
    ARG_VERBOSE,
)


_NOTEBOOK_ARGUMENTS = (
    _option("folder", "Folder of the notebooks (default: [core] dags_folder)", nargs="?"),
    _option("--hops-conn-id", "Connection of type hops, which has the store", default="hops_default"),
    _option("--runtime", "Named environment of the kernels (default: the connection's)"),
    _option("--port", "Port of 127.0.0.1 to listen on (default: 8888)", type=int, default=8888),
    _flag("--no-browser", "Do not open a browser"),
    ARG_VERBOSE,
)

_CARD_ARGUMENTS = (
    _option("model", "Name of the model"),
    _option("version", "Number of the version", type=int),
    _option("--format", "Markdown or HTML (default: md)", choices=("md", "html"), default="md"),
    _option("--output", "File to write (default: standard output)", metavar="FILE"),
    _flag("--kept", "Use the card stored at the newest decision on the version"),
    _STORE_CONNECTION,
    ARG_VERBOSE,
)


_MODEL_COMMANDS = (
    _command(
        "models.replace",
        "Make a model the champion deliberately, regardless of evaluations",
        (
            _option("model", "Name of the model"),
            _option("uri", "URI of the model artifact, the output of the training task"),
            _option("--reason", "Reason; stored with the model", required=True),
            _option("--by", "User who decides (default: the user of this machine)"),
            _option("--conn-id", "Connection of type model_server (default: the hops connection's server)"),
            _STORE_CONNECTION,
            ARG_VERBOSE,
        ),
        "For a champion whose successors are refused: it has learned from a leaking column and seems better, or takes "
        "a column that is gone. Registers the model if necessary, loads it, and gives it all the traffic. Clients must "
        "send its inputs from then on. 'Roll back' on the page Models restores the former champion.",
    ),
)


def get_hops_cli_commands() -> list[CLICommand]:
    """Returns the commands, for Airflow's provider manager."""
    return [
        GroupCommand(
            name="hops",
            help="Machine-learning pipelines: new projects, runtime environment, checks, schemas, searches, store",
            subcommands=(
                _command(
                    "init.init",
                    "Create a project that trains, serves and monitors a model of your data",
                    _INIT_ARGUMENTS,
                    "Reads the file, guesses key, time, features and problem, prints them, and writes "
                    "two DAGs, their functions and a test. Writes nothing if something cannot be used.",
                ),
                GroupCommand(name="runtime", help="Manage the runtime environment", subcommands=_RUNTIME_COMMANDS),
                GroupCommand(name="schema", help="Frozen schemas and their versions", subcommands=_SCHEMA_COMMANDS),
                _command(
                    "search.search",
                    "Show the hyperparameter searches of a DAG, follow one, or stop it",
                    _SEARCH_ARGUMENTS,
                    "Lists the studies of a DAG; with a study's name, shows its progress, the best trial "
                    "so far, running trials and failures. With --output json, all of its trials.",
                ),
                _command(
                    "reproduce.reproduce",
                    "Run an experiment again with its code, data and libraries, and compare the results",
                    _REPRODUCE_ARGUMENTS,
                    "Checks that the inputs have their fingerprints, finds or makes an environment with "
                    "the recorded versions, unpacks the recorded code, and runs the step again, at a separate address "
                    "in the store and without MLflow. Then compares metrics, curves, weights and predictions. Exits "
                    "with 0 if the result is the same, with 1 if it differs, with 2 if it cannot be run.",
                ),
                _command(
                    "models.card",
                    "Export the card of a model's version: data, training, evaluation, rollout, labels, drift",
                    _CARD_ARGUMENTS,
                    "Writes the card from the current store, for readers who may see all of it. Texts of "
                    "users and MLflow's entry are those of the last stored card of the version.",
                ),
                _command(
                    "backtest.backtest",
                    "Evaluate retraining policies on past data",
                    _BACKTEST_ARGUMENTS,
                    "Runs the champion's own pipeline again, with its code, for each training that a "
                    "policy would have asked for, and scores each model on the rows that came after it. Prints for "
                    "each policy the metric on average, trainings, false alarms, cost, and regret against the best "
                    "schedule in hindsight, and writes a report to the store, with policy.json of the policy that "
                    "earned most. Trained models are stored: an interrupted back-test, or one of other policies, "
                    "continues from there.",
                ),
                GroupCommand(name="models", help="Decisions on models that serve", subcommands=_MODEL_COMMANDS),
                GroupCommand(
                    name="datasets",
                    help="Share data sets with other organisations, and fetch theirs",
                    subcommands=_DATASET_COMMANDS,
                ),
                GroupCommand(name="store", help="The artifact store", subcommands=_STORE_COMMANDS),
                _command(
                    "notebook.notebook",
                    "Open JupyterLab with kernels of the runtime environment and access to the store",
                    _NOTEBOOK_ARGUMENTS,
                    "Listens on 127.0.0.1 only, with a token, in the foreground. JupyterLab is installed in a "
                    "separate environment next to the runtime environment, named jupyterlab, which the first call "
                    "creates. Nothing is installed into your home. Values of the connection are in the kernels' "
                    "environment only, not in files or command lines.",
                ),
                _command(
                    "serve.serve",
                    "Run the model server of a connection",
                    (_SERVER_CONNECTION, _FLAGS),
                    "Runs it in the runtime environment, in the foreground, with the connection's "
                    "ports, model config file (created if missing), traffic file, capture path, tokens and storage "
                    "options. Flags after -- are passed to the server and take precedence: airflow hops serve -- "
                    "--host=0.0.0.0. airflow hops serve -- --help lists its flags.",
                ),
                _command(
                    "doctor.doctor",
                    "Check Java, both environments, connections, ports, disk, memory and GPU",
                    (_HOPS_CONNECTION, _SPARK_CONNECTION, ARG_OUTPUT, ARG_VERBOSE),
                    "Exits with 1 if a check fails.",
                ),
            ),
        )
    ]
