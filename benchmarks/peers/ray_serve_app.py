"""The models behind Ray Serve: a deployment of one replica a model, on a local cluster of its own."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import ray
from ray import serve
from starlette.requests import Request


@serve.deployment(num_replicas=1, max_ongoing_requests=100, ray_actor_options={"num_cpus": 0})
class Model:
    """A SavedModel."""

    def __init__(self, folder: str) -> None:
        from benchmarks.peers.served_model import SavedModel

        self._saved_model = SavedModel(folder)

    async def __call__(self, request: Request) -> dict[str, Any]:
        outputs = self._saved_model(json.loads(await request.body())["inputs"])
        return {name: array.tolist() for name, array in outputs.items()}


def main(models: str, port: str, ready_file: str) -> None:
    """Serves until SIGTERM."""
    repository = str(Path(__file__).resolve().parent.parent.parent)
    environment = {"env_vars": {"PYTHONPATH": repository, "TF_CPP_MIN_LOG_LEVEL": "3"}}
    ray.init(include_dashboard=False, num_cpus=2, configure_logging=False, runtime_env=environment)
    serve.start(http_options={"host": "127.0.0.1", "port": int(port), "access_log": False})
    for model in sorted(Path(models).iterdir()):
        serve.run(Model.bind(str(model / "1")), name=model.name, route_prefix=f"/{model.name}")
    Path(ready_file).write_text(json.dumps({"port": int(port)}))
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
