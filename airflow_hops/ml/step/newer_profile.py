"""Names the cause of a failure that libraries of another profile may have."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_hops.core.artifacts.artifact import PROFILE_NAMES
from airflow_hops.core.errors import HopsError
from airflow_hops.core.profiles import Profile
from airflow_hops.core.store.artifact_store import ArtifactStore


def written_by_newer(store: ArtifactStore, uris: Iterable[str], reader: Profile | None) -> str:
    """Returns a sentence about the first artifact that a newer profile than the reader's wrote; empty if there is none.

    It is read only after a failure. An unreadable artifact is skipped, since the failure reports it.
    """
    if reader is None:
        return ""
    for uri in uris:
        try:
            profile = store.manifest(uri).profile
        except (HopsError, OSError):
            continue
        if profile is not None and PROFILE_NAMES.index(profile) > PROFILE_NAMES.index(reader.name):
            return (
                f"\n{uri} was written under the profile {profile!r}, and the runtime environment here is of "
                f"{reader.name!r}: if that is the reason, use one profile on all machines: "
                f"airflow hops runtime create --force --profile {profile}"
            )
    return ""
