"""The commands of ``airflow hops``. Airflow reads this at each start of its CLI, so it imports nothing else."""

from __future__ import annotations

from airflow.cli.cli_config import (
    ARG_OUTPUT,
    ARG_VERBOSE,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
)

_PATH = Arg(
    ("path",),
    nargs="?",
    help="Folder of the runtime environment (default: as configured, or hops-runtime in AIRFLOW_HOME)",
)
_PYTHON = Arg(
    ("--python",),
    help="Python 3.11 to build it on (default: the one that runs Airflow, else one that uv finds, or downloads)",
)
_FORCE = Arg(("--force",), action="store_true", help="Make it anew, whatever is there")
_HOPS_CONNECTION = Arg(("--hops-conn-id",), default="hops_default", help="Connection of type hops to check")
_STORE_CONNECTION = Arg(
    ("--hops-conn-id",), default="hops_default", help="Connection of type hops, which has the store"
)
_DAG = Arg(("dag_id",), help="The pipeline's DAG")
_NAME = Arg(("name",), help="Name of the frozen schema: the task's id, unless the task gives another")
_VERSION = Arg(("--version",), type=int, help="One of its versions (default: what is in force)")
_SERVER_CONNECTION = Arg(
    ("--conn-id",), default="hops_default", help="Connection of type hops or model_server (default: hops_default)"
)
_FLAGS = Arg(("flags",), nargs="*", help="Further flags of the server, behind --")
_SPARK_CONNECTION = Arg(("--spark-conn-id",), default="spark_default", help="Spark connection to check")

_RUNTIME_PATH = Arg(("--path",), help="Folder of the runtime environment (default: as for 'create')")
_RUNTIME_NAME = Arg(("--name",), help="An environment of one's own, which adds packages to the runtime environment's")
_REQUIREMENT = Arg(("requirement",), nargs="+", help="As pip takes it: scikit-image, shap==0.46")

_RUNTIME_COMMANDS = (
    ActionCommand(
        name="create",
        help="Make the runtime environment from the pins that this package carries, or one of your own over it",
        description="Installs TensorFlow, TFDV, Horovod, Spark and MLflow into an environment of their own. What is "
        "good already stays; an interrupted installation is completed. With --name, makes an environment that adds "
        "packages to it, none of which changes one of its own; a task runs in it by runtime=NAME.",
        func=lazy_load_command("airflow_hops.cli.runtime.create"),
        args=(
            _PATH,
            _RUNTIME_NAME,
            Arg(
                ("--with",),
                dest="requirement",
                action="append",
                default=[],
                help="A package that the named environment adds, as pip takes it (can be given again)",
            ),
            _PYTHON,
            Arg(
                ("--cuda",),
                action="store_true",
                help="With the CUDA libraries that TensorFlow names, and Horovod with NCCL (stays so until --force)",
            ),
            _FORCE,
        ),
    ),
    ActionCommand(
        name="list",
        help="List the runtime environment and those of your own, and the CUDA that they have",
        func=lazy_load_command("airflow_hops.cli.runtime.show"),
        args=(_RUNTIME_PATH, ARG_OUTPUT, ARG_VERBOSE),
    ),
    ActionCommand(
        name="install",
        help="Install packages of your own beside those of the pins, none of which changes",
        description="What user code imports in a step, on every machine that runs steps. 'create' keeps them.",
        func=lazy_load_command("airflow_hops.cli.runtime.install"),
        args=(_REQUIREMENT, _RUNTIME_NAME, _RUNTIME_PATH),
    ),
    ActionCommand(
        name="remove",
        help="Remove an environment of your own, or packages from it",
        func=lazy_load_command("airflow_hops.cli.runtime.remove"),
        args=(
            Arg(("package",), nargs="*", help="Packages to remove (default: the environment)"),
            Arg(("--name",), required=True, help="The environment"),
            _RUNTIME_PATH,
        ),
    ),
    ActionCommand(
        name="search",
        help="Say which versions of packages go together with the runtime environment's, and what they bring along",
        func=lazy_load_command("airflow_hops.cli.runtime.search"),
        args=(_REQUIREMENT, _RUNTIME_PATH),
    ),
    ActionCommand(
        name="freeze",
        help="Print the packages of an environment with their versions",
        func=lazy_load_command("airflow_hops.cli.runtime.freeze"),
        args=(_RUNTIME_NAME, _RUNTIME_PATH),
    ),
    ActionCommand(
        name="path",
        help="Print the folder of the runtime environment",
        func=lazy_load_command("airflow_hops.cli.runtime.path"),
        args=(),
    ),
)

_BY = Arg(("--by",), help="Who approves it (default: the user of the operating system)")
_NOTE = Arg(("--note",), default="", help="Why, for the history")
_BEFORE = Arg(("before",), nargs="?", help="A version (default: the one before the last), or a file (alone)")
_AFTER = Arg(("after",), nargs="?", help="Another one, or a file (default: what is in force)")
_FILE = Arg(("file",), help="The new schema, as protobuf text: a path, or the address of a file in the store")

_SCHEMA_COMMANDS = (
    ActionCommand(
        name="show",
        help="Print a frozen schema as protobuf text",
        func=lazy_load_command("airflow_hops.cli.schema.show"),
        args=(_DAG, _NAME, _VERSION, _STORE_CONNECTION),
    ),
    ActionCommand(
        name="history",
        help="List the versions of a frozen schema: when, who, why, by which run",
        func=lazy_load_command("airflow_hops.cli.schema.history"),
        args=(_DAG, _NAME, _STORE_CONNECTION, ARG_OUTPUT, ARG_VERBOSE),
    ),
    ActionCommand(
        name="diff",
        help="Say what differs between two versions of a frozen schema, or between it and a file",
        func=lazy_load_command("airflow_hops.cli.schema.diff"),
        args=(_DAG, _NAME, _BEFORE, _AFTER, _STORE_CONNECTION, ARG_VERBOSE),
    ),
    ActionCommand(
        name="approve",
        help="Publish a schema.pbtxt as the new frozen schema",
        description="The schema before stays in the history. The next run validates and transforms with the new one.",
        func=lazy_load_command("airflow_hops.cli.schema.approve"),
        args=(_DAG, _NAME, _FILE, _BY, _NOTE, _STORE_CONNECTION, ARG_VERBOSE),
    ),
    ActionCommand(
        name="reset",
        help="Have the next run infer the schema anew",
        description="The schema before is in force until then, and stays in the history.",
        func=lazy_load_command("airflow_hops.cli.schema.reset"),
        args=(_DAG, _NAME, _BY, _NOTE, _STORE_CONNECTION, ARG_VERBOSE),
    ),
    ActionCommand(
        name="revert",
        help="Publish an earlier version again",
        func=lazy_load_command("airflow_hops.cli.schema.revert"),
        args=(_DAG, _NAME, Arg(("version",), type=int, help="Its number"), _BY, _NOTE, _STORE_CONNECTION, ARG_VERBOSE),
    ),
)

_STORE_COMMANDS = (
    ActionCommand(
        name="verify",
        help="Read all artifacts again, and list the files that are not what their manifests say",
        description="Compares the SHA-256 of every file with the artifact's manifest. Exits with 1 when a file is gone "
        "or differs.",
        func=lazy_load_command("airflow_hops.cli.store.verify"),
        args=(
            Arg(
                ("prefix",),
                nargs="?",
                help="Address of an artifact or of a folder of them, or its path in the store, such as <dag>/<run> "
                "(default: all of the store)",
            ),
            _STORE_CONNECTION,
            ARG_OUTPUT,
            ARG_VERBOSE,
        ),
    ),
)


_INIT_ARGUMENTS = (
    Arg(("name",), help="Name of the project: its package, its model, and the beginning of its DAGs' ids"),
    Arg(("--from",), dest="from_", required=True, metavar="FILE", help="CSV (also compressed) or Parquet: path or URI"),
    Arg(("--label",), required=True, metavar="COLUMN", help="What is to be predicted"),
    Arg(("--key",), metavar="COLUMN", help="What identifies a row (default: as guessed)"),
    Arg(("--time",), metavar="COLUMN", help="A row's time (default: as guessed)"),
    Arg(("--weight",), metavar="COLUMN", help="A row's weight in training (default: none)"),
    Arg(
        ("--problem",),
        choices=("binary", "multiclass", "regression"),
        help="What the label asks for (default: what its values tell)",
    ),
    Arg(("--drop",), metavar="COLUMN", action="append", default=[], help="A column to leave out (can be given again)"),
    Arg(("--encoding",), default="utf8", help="Of CSV (default: utf8)"),
    Arg(("-o", "--output"), metavar="FOLDER", help="Where the project's folder is made (default: [core] dags_folder)"),
    Arg(("--hops-conn-id",), default="hops_default", help="Connection of type hops"),
    ARG_VERBOSE,
)


def get_hops_cli_commands() -> list[CLICommand]:
    """The commands, for Airflow's provider manager."""
    return [
        GroupCommand(
            name="hops",
            help="Machine-learning pipelines: new projects, runtime environment, checks, schemas, artifact store",
            subcommands=(
                ActionCommand(
                    name="init",
                    help="Write a project that trains, serves and watches a model of your own file",
                    description="Looks at the file, guesses key, time, features and problem, says so, and writes two "
                    "DAGs, their functions and a test. Nothing is written where something cannot be used.",
                    func=lazy_load_command("airflow_hops.cli.init.init"),
                    args=_INIT_ARGUMENTS,
                ),
                GroupCommand(name="runtime", help="Manage the runtime environment", subcommands=_RUNTIME_COMMANDS),
                GroupCommand(name="schema", help="Frozen schemas and their versions", subcommands=_SCHEMA_COMMANDS),
                GroupCommand(name="store", help="The artifact store", subcommands=_STORE_COMMANDS),
                ActionCommand(
                    name="serve",
                    help="Run the model server that a connection names",
                    description="Runs it in the runtime environment, in the foreground, with the connection's ports, "
                    "model config file (written, if it is not there), traffic file, capture path, tokens and storage "
                    "options. What stands behind -- goes to the server and wins: airflow hops serve -- --host=0.0.0.0. "
                    "airflow hops serve -- --help lists its flags.",
                    func=lazy_load_command("airflow_hops.cli.serve.serve"),
                    args=(_SERVER_CONNECTION, _FLAGS),
                ),
                ActionCommand(
                    name="doctor",
                    help="Check Java, both environments, connections, ports, disk, memory and GPU",
                    description="Exits with 1 when a check fails.",
                    func=lazy_load_command("airflow_hops.cli.doctor.doctor"),
                    args=(_HOPS_CONNECTION, _SPARK_CONNECTION, ARG_OUTPUT, ARG_VERBOSE),
                ),
            ),
        )
    ]
