"""The models behind MLServer: its command line, and a runtime for SavedModels, as its documentation shows one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from mlserver import MLModel, types
from mlserver.codecs import NumpyCodec, StringCodec

from benchmarks.peers.served_model import SavedModel


class SavedModelRuntime(MLModel):
    """A SavedModel."""

    async def load(self) -> bool:
        self._saved_model = SavedModel(str(self.settings.parameters.uri))
        return True

    async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
        inputs = {}
        for tensor in payload.inputs:
            if tensor.datatype == "BYTES":
                inputs[tensor.name] = StringCodec.decode_input(tensor)
            else:
                inputs[tensor.name] = NumpyCodec.decode_input(tensor).astype(np.float32)
        outputs = self._saved_model(inputs)
        return types.InferenceResponse(
            model_name=self.name,
            outputs=[NumpyCodec.encode_output(name, array) for name, array in outputs.items()],
        )


def main(models: str, folder: str, http_port: str, grpc_port: str) -> None:
    """Writes the settings, and becomes ``mlserver start``."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    settings = {
        "http_port": int(http_port),
        "grpc_port": int(grpc_port),
        "metrics_port": 0,
        "host": "127.0.0.1",
        "parallel_workers": 0,
        "debug": False,
        "grpc_max_message_length": -1,
        "metrics_endpoint": None,
    }
    (target / "settings.json").write_text(json.dumps(settings))
    for model in sorted(Path(models).iterdir()):
        (target / model.name).mkdir(exist_ok=True)
        described = {
            "name": model.name,
            "implementation": "benchmarks.peers.mlserver_app.SavedModelRuntime",
            "parameters": {"uri": str(model / "1")},
        }
        (target / model.name / "model-settings.json").write_text(json.dumps(described))
    program = str(Path(sys.executable).parent / "mlserver")
    os.execv(program, [program, "start", str(target)])


if __name__ == "__main__":
    main(*sys.argv[1:])
