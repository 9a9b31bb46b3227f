"""The commands of ``airflow hops``. Airflow reads this at each start of its CLI, so it imports nothing else."""

from __future__ import annotations

from argparse import Namespace

from airflow.cli.cli_config import (
    ARG_OUTPUT,
    ARG_VERBOSE,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
)


def _command(
    function: str, help: str, args: tuple[Arg, ...], description: str | None = None, name: str | None = None
) -> ActionCommand:
    """Returns the command of a function of ``airflow_hops.cli``; its errors end the program with their message."""
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
        name=name or function.partition(".")[2],
        help=help,
        description=description,
        func=run,
        args=args,
    )


_PATH = Arg(
    ("path",),
    nargs="?",
    help="Folder of the runtime environment (default: the configured one, or hops-runtime in AIRFLOW_HOME)",
)
_PYTHON = Arg(
    ("--python",),
    help="Python 3.11 to use (default: the one that runs Airflow, otherwise one that uv finds or downloads)",
)
_FORCE = Arg(("--force",), action="store_true", help="Delete an existing environment and create it again")
_HOPS_CONNECTION = Arg(("--hops-conn-id",), default="hops_default", help="Connection of type hops to check")
_STORE_CONNECTION = Arg(
    ("--hops-conn-id",), default="hops_default", help="Connection of type hops that has the artifact store"
)
_DAG = Arg(("dag_id",), help="The pipeline's DAG")
_NAME = Arg(("name",), help="Name of the frozen schema (by default the id of its task)")
_VERSION = Arg(("--version",), type=int, help="Version of the schema (default: the one in force)")
_SERVER_CONNECTION = Arg(
    ("--conn-id",), default="hops_default", help="Connection of type hops or model_server (default: hops_default)"
)
_FLAGS = Arg(("flags",), nargs="*", help="Additional flags for the server, after --")
_SPARK_CONNECTION = Arg(("--spark-conn-id",), default="spark_default", help="Spark connection to check")

_RUNTIME_PATH = Arg(("--path",), help="Folder of the runtime environment (default: as for 'create')")
_RUNTIME_NAME = Arg(("--name",), help="Named environment, which adds packages to the runtime environment")
_REQUIREMENT = Arg(("requirement",), nargs="+", help="Requirement in pip's format, such as scikit-image or shap==0.46")

_RUNTIME_COMMANDS = (
    _command(
        "runtime.create",
        "Create the runtime environment with pinned packages, or a named environment on top of it",
        (
            _PATH,
            _RUNTIME_NAME,
            Arg(
                ("--with",),
                dest="requirement",
                action="append",
                default=[],
                help="Package to add to the named environment, in pip's format (can be repeated)",
            ),
            _PYTHON,
            Arg(
                ("--cuda",),
                action="store_true",
                help="Install the CUDA libraries that TensorFlow requires, and Horovod with NCCL (kept until --force)",
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
            Arg(("package",), nargs="*", help="Packages to remove (default: the whole environment)"),
            Arg(("--name",), required=True, help="Name of the environment"),
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
    _command("runtime.path", "Print the folder of the runtime environment", ()),
)

_BY = Arg(("--by",), help="Name of the person who approves it (default: the operating system's user)")
_NOTE = Arg(("--note",), default="", help="Reason, for the history")
_BEFORE = Arg(
    ("before",), nargs="?", help="A version (default: the last but one), or a file (without the second argument)"
)
_AFTER = Arg(("after",), nargs="?", help="Another version, or a file (default: the version in force)")
_FILE = Arg(("file",), help="The new schema as protobuf text: a path, or the URI of a file in the store")

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
        (_DAG, _NAME, Arg(("version",), type=int, help="Its number"), _BY, _NOTE, _STORE_CONNECTION, ARG_VERBOSE),
    ),
)

_STORE_COMMANDS = (
    _command(
        "store.verify",
        "Read all artifacts, and list the files that do not match their manifests",
        (
            Arg(
                ("prefix",),
                nargs="?",
                help="URI of an artifact or of a folder of artifacts, or its path in the store, such as <dag>/<run> "
                "(default: the whole store)",
            ),
            _STORE_CONNECTION,
            ARG_OUTPUT,
            ARG_VERBOSE,
        ),
        "Compares the SHA-256 of every file with the artifact's manifest. Exits with 1 if a file is "
        "missing or differs.",
    ),
)


_INIT_ARGUMENTS = (
    Arg(("name",), help="Name of the project: its package, its model, and the prefix of its DAG ids"),
    Arg(("--from",), dest="from_", required=True, metavar="FILE", help="CSV (also compressed) or Parquet: path or URI"),
    Arg(("--label",), required=True, metavar="COLUMN", help="Column to predict"),
    Arg(("--key",), metavar="COLUMN", help="Column that identifies a row (default: guessed)"),
    Arg(("--time",), metavar="COLUMN", help="Column of a row's time (default: guessed)"),
    Arg(("--weight",), metavar="COLUMN", help="Column of a row's weight in training (default: none)"),
    Arg(
        ("--problem",),
        choices=("binary", "multiclass", "regression"),
        help="Type of the problem (default: determined from the label's values)",
    ),
    Arg(("--drop",), metavar="COLUMN", action="append", default=[], help="Column to leave out (can be repeated)"),
    Arg(
        ("--keep",),
        metavar="COLUMN",
        action="append",
        default=[],
        help="Column to keep as a feature even if it alone tells the label (can be repeated)",
    ),
    Arg(
        ("--type",),
        metavar="COLUMN=TYPE",
        action="append",
        default=[],
        help="Type of a column, such as zip=string, score=float64 or, for dates, at=%%d/%%m/%%Y (can be repeated; "
        "default: inferred)",
    ),
    Arg(("--decimal",), choices=(".", ","), help="Decimal mark of a CSV file (default: recognised)"),
    Arg(("--thousands",), metavar="MARK", help="Mark between thousands in a CSV file (default: recognised)"),
    Arg(("--encoding",), default="utf8", help="Encoding of a CSV file (default: utf8)"),
    Arg(
        ("-o", "--output"),
        metavar="FOLDER",
        help="Folder in which to create the project's folder (default: [core] dags_folder)",
    ),
    Arg(("--hops-conn-id",), default="hops_default", help="Connection of type hops"),
    ARG_VERBOSE,
)

_SEARCH_ARGUMENTS = (
    _DAG,
    Arg(("study",), nargs="?", help="Name of a study: the DAG run's id, unless the task gives another"),
    Arg(("--task",), help="The task that searches, where several have a study of that name"),
    Arg(("--follow",), action="store_true", help="Show the progress until the search ends (default: newest study)"),
    Arg(
        ("--stop",),
        nargs="*",
        type=int,
        metavar="TRIAL",
        help="Stop running trials by their numbers, or without a number the search (default: of the newest study)",
    ),
    _STORE_CONNECTION,
    ARG_OUTPUT,
    ARG_VERBOSE,
)


_REPRODUCE_ARGUMENTS = (
    Arg(
        ("run",),
        help="MLflow's id of a run, a registered version as MODEL/VERSION, or an artifact's URI or path in the store",
    ),
    Arg(
        ("--tolerance",),
        type=float,
        default=1e-3,
        help="Difference of metrics and predictions that counts as the same (default: 0.001)",
    ),
    Arg(
        ("--environment",),
        choices=("lock", "present"),
        default="lock",
        help="Environment to run in: one with the recorded versions, which is made if there is none, or the present "
        "one (default: lock)",
    ),
    Arg(
        ("--incomplete",),
        action="store_true",
        help="Also reproduce a training without a record, with the present code and environment",
    ),
    Arg(("--json",), action="store_true", help="Print the comparison as JSON"),
    Arg(("--runtime",), help="A named environment to begin from (default: the connection's)"),
    _STORE_CONNECTION,
    ARG_VERBOSE,
)

_BACKTEST_ARGUMENTS = (
    Arg(("model",), help="The model, whose champion's pipeline is run again"),
    Arg(("--from",), dest="start", required=True, help="Start of the history, as 2013-01-01"),
    Arg(("--to",), dest="end", required=True, help="Its end, which is not part of it"),
    Arg(("--every",), default="7d", help="Length of a period, at whose end policies decide (default: 7d)"),
    Arg(("--first",), help="Length of the first model's training window (default: that of the champion's)"),
    Arg(
        ("--policy",),
        action="append",
        required=True,
        help="never, monthly, weekly, drift, performance, module:attribute of a RetrainingPolicy or of the DAG of a "
        "retraining_loop, or a JSON file (can be repeated)",
    ),
    Arg(
        ("--code-path",),
        action="append",
        help="Folder of the modules of --policy (can be repeated; default: [core] dags_folder)",
    ),
    Arg(
        ("--label-delay",),
        action="append",
        help="How long labels come after their rows, as 7d; candidates learn from rows with one. Policies that use "
        "labels are tried with each, others with the shortest (can be repeated; default: 0d)",
    ),
    Arg(
        ("--price",),
        type=float,
        default=0.0,
        help="What a training must bring: the metric's gain on average over the history (default: 0)",
    ),
    Arg(("--jobs",), type=int, default=1, help="Policies that are tried at once (default: 1)"),
    Arg(("--output",), help="Folder to which the report and policy.json are copied"),
    Arg(("--json",), action="store_true", help="Print the report as JSON"),
    Arg(("--spark-conn-id",), default="spark_default", help="Connection of the steps that run on Spark"),
    _STORE_CONNECTION,
    ARG_VERBOSE,
)


_NOTEBOOK_ARGUMENTS = (
    Arg(("folder",), nargs="?", help="Folder of the notebooks (default: [core] dags_folder)"),
    Arg(("--hops-conn-id",), default="hops_default", help="Connection of type hops, which has the store"),
    Arg(("--runtime",), help="An environment of your own, in which the kernels run (default: the connection's)"),
    Arg(("--port",), type=int, default=8888, help="Port of 127.0.0.1 to listen on (default: 8888)"),
    Arg(("--no-browser",), action="store_true", help="Do not open a browser"),
    ARG_VERBOSE,
)

_CARD_ARGUMENTS = (
    Arg(("model",), help="Name of the model"),
    Arg(("version",), type=int, help="Number of the version"),
    Arg(("--format",), choices=("md", "html"), default="md", help="Markdown or HTML (default: md)"),
    Arg(("--output",), metavar="FILE", help="File to write (default: standard output)"),
    Arg(("--kept",), action="store_true", help="The card as it was kept with the newest decision on the version"),
    _STORE_CONNECTION,
    ARG_VERBOSE,
)


_MODEL_COMMANDS = (
    _command(
        "models.replace",
        "Make a model the champion on purpose, whatever comparisons say of it",
        (
            Arg(("model",), help="Name of the model"),
            Arg(("uri",), help="URI of the model artifact, the output of the training task"),
            Arg(("--reason",), required=True, help="Why; kept with the model"),
            Arg(("--by",), help="Who decides (default: the user of this machine)"),
            Arg(
                ("--conn-id",),
                help="Connection of type model_server (default: the hops connection's server)",
            ),
            _STORE_CONNECTION,
            ARG_VERBOSE,
        ),
        "For a champion whose successors are refused: it has learned from a leaking column and seems better, or takes "
        "a column that is gone. Registers the model if necessary, loads it, and gives it all the traffic. Clients must "
        "send its inputs from then on. 'Roll back' on the page Models restores the former champion.",
    ),
)


def get_hops_cli_commands() -> list[CLICommand]:
    """The commands, for Airflow's provider manager."""
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
                    "the recorded versions, unpacks the recorded code, and runs the step again, in a place of its own "
                    "in the store and unknown to MLflow. Then compares metrics, curves, weights and predictions. Exits "
                    "with 0 if the result is the same, with 1 if it differs, with 2 if it cannot be run.",
                ),
                _command(
                    "models.card",
                    "Export the card of a model's version: data, training, evaluation, rollout, labels, drift",
                    _CARD_ARGUMENTS,
                    "Writes it from the store as it is now, for who may see all of it. What people have "
                    "written, and MLflow's part, are as they were when a card of the version was kept last.",
                ),
                _command(
                    "backtest.backtest",
                    "Say what retraining policies would have made of the past",
                    _BACKTEST_ARGUMENTS,
                    "Runs the champion's own pipeline again, with its code, for each training that a "
                    "policy would have asked for, and scores each model on the rows that came after it. Prints for "
                    "each policy the metric on average, trainings, false alarms, cost, and regret against the best "
                    "schedule in hindsight, and writes a report to the store, with policy.json of the policy that "
                    "earned most. What is trained is kept: an interrupted back-test, or one of other policies, goes "
                    "on from there.",
                ),
                GroupCommand(name="models", help="Decisions on models that serve", subcommands=_MODEL_COMMANDS),
                GroupCommand(name="store", help="The artifact store", subcommands=_STORE_COMMANDS),
                _command(
                    "notebook.notebook",
                    "Open JupyterLab with kernels of the runtime environment, and the store at hand",
                    _NOTEBOOK_ARGUMENTS,
                    "Listens on 127.0.0.1 alone, with a token, in the foreground. JupyterLab lies in an "
                    "environment of its own beside the runtime environment, named jupyterlab, which the first call "
                    "makes. Nothing is installed into your home. What comes from the connection is in the kernels' "
                    "environment, in no file, and on no command line.",
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
