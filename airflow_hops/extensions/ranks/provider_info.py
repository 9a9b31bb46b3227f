"""Provider information of ranks: the connection type ``horovod``."""

from __future__ import annotations

from airflow_hops.provider_info import field

PROVIDER_INFO: dict[str, object] = {
    "hooks": [{"integration-name": "Hops", "python-modules": ["airflow_hops.extensions.ranks.hooks"]}],
    "connection-types": [
        {
            "connection-type": "horovod",
            "hook-class-name": "airflow_hops.extensions.ranks.hooks.RanksHook",
            "hook-name": "Horovod hosts",
            "ui-field-behaviour": {
                "hidden-fields": ["schema", "password", "host"],
                "relabeling": {"login": "SSH user", "port": "SSH port"},
                "placeholders": {"login": "who runs the worker", "port": "22"},
            },
            "conn-fields": {
                "hosts": field(
                    "Hosts",
                    "Hosts and how many ranks each takes, filled in this order: gpu-1:4,gpu-2:4. "
                    "Empty: all ranks run on the worker's machine",
                ),
                "key_file": field(
                    "Key file",
                    "Absolute path on the worker of a private key without a passphrase. Empty: the keys that ssh finds",
                ),
                "config_file": field("SSH config file", "Absolute path on the worker. Empty: ~/.ssh/config"),
                "python": field(
                    "Python of the hosts",
                    "Absolute path of bin/python in the runtime environment of each host. "
                    "Empty: the same path as on the worker",
                ),
                "address": field(
                    "Address of the worker",
                    "IPv4 address or name at which the hosts reach the worker, if address translation changes it. "
                    "Empty: found for each host",
                ),
                "slots": field(
                    "Slots of this machine",
                    "How many ranks the worker's own machine takes if no hosts are given. "
                    "Empty: one for each GPU, or without GPUs for each core",
                    "integer",
                ),
            },
        },
    ],
}
