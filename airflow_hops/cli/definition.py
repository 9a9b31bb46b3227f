"""Commands of ``airflow hops``. Airflow imports this at each start of its CLI, so it imports nothing slow."""

from __future__ import annotations

from airflow_hops.cli.arguments import (
    ARG_OUTPUT,
    ARG_VERBOSE,
    DAG,
    STORE_CONNECTION,
    CLICommand,
    GroupCommand,
    command,
    flag,
    option,
    repeated,
)
from airflow_hops.core.extensions import COMMANDS, extensions

_PATH = option(
    "path",
    "Folder of the runtime environment (default: the configured one, or hops-runtime in AIRFLOW_HOME)",
    nargs="?",
)
_PYTHON = option(
    "--python",
    "Python to use: 3.11 for the profile base, 3.12 or 3.13 for current (default: the one that runs Airflow, otherwise "
    "one that uv finds or downloads)",
)
_FORCE = flag("--force", "Delete an existing environment and create it again")
_HOPS_CONNECTION = option("--hops-conn-id", "Connection of type hops to check", default="hops_default")
_SERVER_CONNECTION = option(
    "--hops-conn-id", "Connection of type hops whose fields configure the server", default="hops_default"
)
_NAME = option("name", "Name of the frozen schema (by default the id of its task)")
_VERSION = option("--version", "Version of the schema (default: the one in force)", type=int)
_FLAGS = option("flags", "Additional flags for the server, after --", nargs="*")

_RUNTIME_PATH = option("--path", "Folder of the runtime environment (default: as for 'create')")
_RUNTIME_NAME = option("--name", "Named environment, which adds packages to the runtime environment")
_REQUIREMENT = option(
    "requirement",
    "Requirement in pip's format, such as scikit-image or shap==0.46, or a wheel or a project's folder",
    nargs="+",
)

_RUNTIME_COMMANDS = (
    command(
        "airflow_hops.cli.runtime.create",
        "Create the runtime environment with pinned packages, or a named environment on top of it",
        (
            _PATH,
            _RUNTIME_NAME,
            repeated(
                "--with",
                "Package to add to the environment, in pip's format, such as torch (can be repeated)",
                dest="requirement",
            ),
            option(
                "--profile",
                "Set of pinned libraries: current from glibc 2.39 on, or base (default: that of an existing "
                "environment, otherwise the newest that this machine can run)",
                choices=["base", "current"],
            ),
            _PYTHON,
            flag(
                "--java",
                "Install a Java for Spark, unless this machine has one (default if there is a connection "
                "spark_default, or the environment has a Java)",
            ),
            flag(
                "--horovod",
                "Build Horovod, too, for trainings on several ranks; some minutes, with g++, make and Python's header "
                "files (kept until --force)",
            ),
            flag(
                "--cuda",
                "Install the CUDA libraries that TensorFlow requires; with --horovod, Horovod has NCCL (kept until "
                "--force)",
            ),
            _FORCE,
        ),
        "Installs TensorFlow, TFDV, Spark and MLflow into a separate environment. A valid "
        "environment is kept; an interrupted installation is completed. With --name, creates an environment that "
        "adds packages without changing those of the runtime environment; a task with runtime=NAME runs in it.",
    ),
    command(
        "airflow_hops.cli.runtime.show",
        "List the runtime environment and the named environments, with their CUDA versions",
        (_RUNTIME_PATH, ARG_OUTPUT, ARG_VERBOSE),
        name="list",
    ),
    command(
        "airflow_hops.cli.runtime.install",
        "Install additional packages, without changing the pinned ones",
        (_REQUIREMENT, _RUNTIME_NAME, _RUNTIME_PATH),
        "Installs packages that your code imports in steps. Run it on every machine that runs steps. "
        "'create' keeps the packages.",
    ),
    command(
        "airflow_hops.cli.runtime.remove",
        "Remove a named environment, or packages from it",
        (
            option("package", "Packages to remove (default: the whole environment)", nargs="*"),
            option("--name", "Name of the environment", required=True),
            _RUNTIME_PATH,
        ),
    ),
    command(
        "airflow_hops.cli.runtime.pack",
        "Pack the environment with its Python into an archive for the executors of a Spark cluster",
        (
            option("target", "The .tar.gz file to write: a path, or a URI such as s3://bucket/runtime.tar.gz"),
            _RUNTIME_NAME,
            _RUNTIME_PATH,
            STORE_CONNECTION,
        ),
        "The archive has all packages, Horovod included, and works in any folder of hosts with the same operating "
        "system. Name it in the field runtime_archive of the Spark connection's extra. Pack it again when the "
        "environment's packages change.",
    ),
    command("airflow_hops.cli.runtime.path", "Print the folder of the runtime environment", ()),
)

_BY = option("--by", "Name of the person who approves it (default: the operating system's user)")
_NOTE = option("--note", "Reason, for the history", default="")
_BEFORE = option("before", "A version (default: the last but one), or a file (without the second argument)", nargs="?")
_AFTER = option("after", "Another version, or a file (default: the version in force)", nargs="?")
_FILE = option("file", "The new schema as protobuf text: a path, or the URI of a file in the store")

_SCHEMA_COMMANDS = (
    command(
        "airflow_hops.cli.schema.show",
        "Print a frozen schema as protobuf text",
        (DAG, _NAME, _VERSION, STORE_CONNECTION),
    ),
    command(
        "airflow_hops.cli.schema.history",
        "List the versions of a frozen schema, with time, approver, reason and run",
        (DAG, _NAME, STORE_CONNECTION, ARG_OUTPUT, ARG_VERBOSE),
    ),
    command(
        "airflow_hops.cli.schema.diff",
        "Show the differences between two versions of a frozen schema, or between it and a file",
        (DAG, _NAME, _BEFORE, _AFTER, STORE_CONNECTION, ARG_VERBOSE),
    ),
    command(
        "airflow_hops.cli.schema.approve",
        "Publish a schema.pbtxt as the new frozen schema",
        (DAG, _NAME, _FILE, _BY, _NOTE, STORE_CONNECTION, ARG_VERBOSE),
        "The previous schema stays in the history. The next run validates and transforms with the new one.",
    ),
    command(
        "airflow_hops.cli.schema.reset",
        "Make the next run infer the schema again",
        (DAG, _NAME, _BY, _NOTE, STORE_CONNECTION, ARG_VERBOSE),
        "The previous schema stays in force until then, and remains in the history.",
    ),
    command(
        "airflow_hops.cli.schema.revert",
        "Publish an earlier version again",
        (DAG, _NAME, option("version", "Its number", type=int), _BY, _NOTE, STORE_CONNECTION, ARG_VERBOSE),
    ),
)

_STORE_COMMANDS = (
    command(
        "airflow_hops.cli.store.verify",
        "Read all artifacts, and list the files that do not match their manifests",
        (
            option(
                "prefix",
                "URI of an artifact or of a folder of artifacts, or its path in the store, such as <dag>/<run> "
                "(default: the whole store)",
                nargs="?",
            ),
            STORE_CONNECTION,
            ARG_OUTPUT,
            ARG_VERBOSE,
        ),
        "Compares the SHA-256 of every file with the artifact's manifest. Exits with 1 if a file is missing or "
        "differs.",
    ),
)

_DECISION = (
    option("--reason", "Reason; stored with the model", required=True),
    option("--by", "User who decides (default: the user of this machine)"),
    STORE_CONNECTION,
    ARG_VERBOSE,
)

_MODEL_COMMANDS = (
    command(
        "airflow_hops.cli.models.replace",
        "Make a model the champion deliberately, regardless of evaluations",
        (
            option("model", "Name of the model"),
            option("uri", "URI of the model artifact, the output of the training task"),
            *_DECISION,
        ),
        "For a champion whose successors are refused: it has learned from a leaking column and seems better, or takes "
        "a column that is gone. Registers the model if necessary, loads it, and gives it all the traffic. Clients must "
        "send its inputs from then on. 'Roll back' on the page Models restores the former champion.",
    ),
    command(
        "airflow_hops.cli.models.owners",
        "Name the DAGs that may deploy a model and decide on its serving",
        (
            option("model", "Name of the model"),
            option("dag", "DAGs that own the model from now on", nargs="+"),
            *_DECISION,
        ),
        "The DAG that first deploys a model owns it. After that DAG was renamed, or if several DAGs work on a model, "
        "name all that may; others are refused. The page Models does the same, for who may trigger all of them.",
    ),
)


def get_hops_cli_commands() -> list[CLICommand]:
    """Returns the commands, for Airflow's provider manager."""
    own: tuple[CLICommand, ...] = (
        GroupCommand(name="runtime", help="Manage the runtime environment", subcommands=_RUNTIME_COMMANDS),
        GroupCommand(name="schema", help="Frozen schemas and their versions", subcommands=_SCHEMA_COMMANDS),
        GroupCommand(name="models", help="Decisions on models that serve", subcommands=_MODEL_COMMANDS),
        GroupCommand(name="store", help="The artifact store", subcommands=_STORE_COMMANDS),
        command(
            "airflow_hops.cli.serve.serve",
            "Run the model server of a connection",
            (_SERVER_CONNECTION, _FLAGS),
            "Runs it in the runtime environment, in the foreground, with the connection's "
            "ports, model config file (created if missing), traffic file, capture path, tokens and storage "
            "options. Flags after -- are passed to the server and take precedence: airflow hops serve -- "
            "--host=0.0.0.0. airflow hops serve -- --help lists its flags.",
        ),
        command(
            "airflow_hops.cli.doctor.doctor",
            "Check Java, both environments, connections, ports, disk, memory and GPU",
            (
                _HOPS_CONNECTION,
                ARG_OUTPUT,
                ARG_VERBOSE,
            ),
            "Exits with 1 if a check fails.",
        ),
    )
    added = [each for extension in extensions(COMMANDS).values() for each in extension.load()]
    return [
        GroupCommand(
            name="hops",
            help="Machine-learning pipelines: new projects, runtime environment, checks, schemas, searches, store",
            subcommands=sorted([*own, *added], key=lambda each: each.name),
        )
    ]
