"""Program of a pod's container: fetches this package and the user code from the store, and runs the step or rank.

The pod's Secret has a copy of it. It runs before this package is unpacked, so it imports no other module of it.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path
from urllib.parse import unquote

_FILE = "file://"
_STEP = "airflow_hops.extensions.kubernetes.runner.in_pod"


def main(here: Path) -> int:
    """Runs the pod whose Secret is mounted at ``here``; returns its exit code."""
    order = json.loads((here / "pod.json").read_text())
    folder = Path(order["folder"])
    for name, uri in order["archives"].items():
        archive = folder / f"{name}.zip"
        try:
            _fetch(uri, order["storage_options"], archive)
        except Exception as error:  # raised by the store's client
            advice = (
                "mount that folder at the same path in pod_template_file or pod_override, or use a store such as s3://"
                if uri.startswith(_FILE)
                else "check the storage options and the cluster's network"
            )
            reason = f"{type(error).__name__}: {error}"
            leave_error(message := f"the pod cannot read {uri} of the artifact store ({reason}); {advice}")
            print(message, file=sys.stderr)
            return 1
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder / name)
        archive.unlink()
    sys.path.insert(0, str(folder / "package"))
    module = order["member"] if "HOPS_POD_ROLE" in os.environ else _STEP
    return int(importlib.import_module(module).main(here))


def leave_error(message: str) -> None:
    """Leaves an error where Kubernetes shows it in the pod's status, of at most 4 kB."""
    Path("/dev/termination-log").write_text(json.dumps({"error": message[:3000], "retryable": True}))


def _fetch(uri: str, storage_options: dict[str, object], target: Path) -> None:
    if uri.startswith(_FILE):
        shutil.copyfile(unquote(uri.removeprefix(_FILE)), target)
        return
    import fsspec

    if uri.startswith("hdfs://"):
        fsspec.register_implementation("hdfs", "hdfs_native.fsspec.HdfsFileSystem", clobber=True)
    files, path = fsspec.core.url_to_fs(uri, **storage_options)
    files.get_file(path, str(target))


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent))
