"""Provider information of data set sharing."""

from __future__ import annotations

from airflow_hops.provider_info import option

PROVIDER_INFO: dict[str, object] = {
    "triggers": [{"integration-name": "Hops", "python-modules": ["airflow_hops.extensions.sharing.triggers"]}],
    "options": {
        "sharing": option(
            "Folder with the settings, the key and the trusted keys of data set sharing. Empty: the folder "
            "``hops-sharing`` in AIRFLOW_HOME.",
            "string",
            "",
            "/etc/hops-sharing",
        ),
    },
}
