"""Commands of data set sharing."""

from __future__ import annotations

from airflow_hops.cli.arguments import (
    ARG_OUTPUT,
    ARG_VERBOSE,
    OWNERS_ARGUMENTS,
    STORE_CONNECTION,
    CLICommand,
    GroupCommand,
    command,
    flag,
    option,
    repeated,
)

_DATASET = option("dataset", "Data set: [ORGANISATION/]NAME@VERSION")
_SHARING_RUNTIME = option("--runtime", "Named environment with libtorrent (default: sharing)", default="sharing")

_DATASET_COMMANDS = (
    command(
        "airflow_hops.extensions.sharing.cli.datasets.publish",
        "Publish a snapshot or examples artifact as the next version of a data set",
        (
            option("artifact", "URI of the artifact, or its path in the store"),
            option("--name", "Name of the data set", required=True),
            option("--licence", "Licence: an SPDX identifier, such as CC-BY-4.0, or a text", required=True),
            option("--description", "One paragraph about the data", required=True),
            option("--card", "Markdown file with a longer description", metavar="FILE"),
            option(
                "--sample-rows",
                "Rows of each table that anybody may see before a download (default: 10)",
                type=int,
                default=10,
            ),
            _SHARING_RUNTIME,
            STORE_CONNECTION,
            ARG_VERBOSE,
        ),
        "Run it on the machine of the daemon. Computes statistics and a schema, and signs the entry with the key of "
        "this organisation.",
    ),
    command(
        "airflow_hops.extensions.sharing.cli.datasets.unpublish",
        "Stop sharing a version of a data set",
        (_DATASET, STORE_CONNECTION, ARG_VERBOSE),
    ),
    command(
        "airflow_hops.extensions.sharing.cli.datasets.owners",
        "Name the DAGs whose artifacts may be published as a data set, or list the owners",
        OWNERS_ARGUMENTS,
        "The DAG whose artifact is first published under a name owns it; artifacts of others are refused.",
    ),
    command(
        "airflow_hops.extensions.sharing.cli.datasets.show",
        "Fetch the preview of a data set, and print it as JSON: card, schema, statistics and sample rows",
        (_DATASET, STORE_CONNECTION, ARG_VERBOSE),
        "The page Shared data shows it afterwards.",
    ),
    command(
        "airflow_hops.extensions.sharing.cli.datasets.download",
        "Fetch a data set into the store",
        (_DATASET, STORE_CONNECTION, ARG_VERBOSE),
    ),
    command(
        "airflow_hops.extensions.sharing.cli.datasets.remove",
        "Remove a fetched data set from the store and the daemon's disk",
        (_DATASET, STORE_CONNECTION, ARG_VERBOSE),
    ),
    command(
        "airflow_hops.extensions.sharing.cli.datasets.keys",
        "Print the keys of this and of the trusted organisations; create or change them",
        (
            flag("--create", "Create the key and the settings of this organisation"),
            option("--organisation", "Name of this organisation, for --create"),
            option("--trust", "Trust an organisation, as NAME=KEY"),
            option("--catalogue", "Address of its catalogue, for --trust: https://HOST/hops/catalogue"),
            repeated("--address", "Host from which it connects, if not that of its catalogue (can be repeated)"),
            option("--distrust", "Name of an organisation that is not to be trusted any more"),
            ARG_OUTPUT,
            ARG_VERBOSE,
        ),
    ),
    command(
        "airflow_hops.extensions.sharing.cli.datasets.serve",
        "Run the daemon that shares and fetches data sets",
        (_SHARING_RUNTIME, STORE_CONNECTION),
        "Runs in the foreground, in the named environment. Listens at 127.0.0.1 unless settings.toml says otherwise.",
    ),
)

COMMANDS: tuple[CLICommand, ...] = (
    GroupCommand(
        name="datasets",
        help="Share data sets with other organisations, and fetch theirs",
        subcommands=_DATASET_COMMANDS,
    ),
)
