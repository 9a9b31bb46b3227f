"""The parts of TensorFlow that are imported for running graphs and for making them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tensorflow as tf

from airflow_hops.core.processes.programs import with_package

MAKING = """
import sys
from airflow_hops.core.processes.tensorflow_graphs import import_tensorflow

import_tensorflow()
left_out = {"keras", "scipy", "h5py", "googleapiclient"}
assert not left_out & sys.modules.keys()
import h5py, scipy.sparse
"""


RUNNING = """
import sys
from pathlib import Path
import numpy as np
from airflow_hops.serving.models.formats import open_model
from airflow_hops.serving.models.model_options import ModelOptions

for form in ("saved_model", "tflite"):
    opened = open_model("m", 1, Path(sys.argv[1], form), ModelOptions())
    assert opened.predict({"x": np.float32([2.0])})["y"] == 6.0
    opened.close()
assert "tensorflow" not in sys.modules
import tensorflow as tf

assert tf.__version__ and tf.constant([1.0]).numpy() == 1.0
restored = tf.saved_model.load(f"{sys.argv[1]}/saved_model")
assert restored.signatures["serving_default"](x=tf.constant([2.0]))["y"].numpy() == 6.0
assert tf.keras.Sequential([tf.keras.layers.Dense(1)])(tf.ones([1, 1])).shape == (1, 1)
"""


def run(program: str, *arguments: object) -> None:
    subprocess.run([sys.executable, "-c", program, *map(str, arguments)], env=with_package({}), check=True)


def test_what_making_graphs_does_not_need_is_not_imported_and_can_be_later() -> None:
    run(MAKING)


def test_models_are_opened_and_run_without_tensorflows_api_which_can_be_imported_later(tmp_path: Path) -> None:
    module = tf.Module()
    module.by = tf.Variable(3.0)
    module.run = tf.function(lambda x: {"y": x * module.by}, input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    concrete = module.run.get_concrete_function()
    tf.saved_model.save(module, str(tmp_path / "saved_model"), signatures={"serving_default": concrete})
    (tmp_path / "tflite").mkdir()
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "saved_model"))
    (tmp_path / "tflite" / "model.tflite").write_bytes(converter.convert())
    run(RUNNING, tmp_path)
