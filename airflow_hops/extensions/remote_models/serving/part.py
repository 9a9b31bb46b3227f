"""A part of the model server that opens base paths in stores."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from airflow_hops.serving.flags import Flags, flag
from airflow_hops.serving.parts import OnLook, ServerPart, VersionStores


@dataclass(frozen=True)
class RemoteModelFlags:
    """Models in stores."""

    model_cache_path: str = flag(
        "", "folder for copies of versions whose base path is a URL (default: the system's temporary folder)"
    )


class RemoteModels(ServerPart):
    """Lists versions in stores, and copies them to this machine."""

    flags = RemoteModelFlags

    def stores(self, flags: Flags, changed: threading.Condition, on_look: OnLook) -> VersionStores:
        """Returns the stores of this process."""
        from airflow_hops.extensions.remote_models.serving.model_cache import ModelCache
        from airflow_hops.extensions.remote_models.serving.remote_storage import RemoteLooks

        root = flags.of(RemoteModelFlags).model_cache_path
        return RemoteLooks(changed, ModelCache(Path(root).absolute() if root else None), on_look)
