"""A script that writes its model itself, on rank 0."""

import os
from pathlib import Path

import horovod.tensorflow as hvd
import tensorflow as tf

from airflow_hops.hops import current_context

hvd.init()
assert (current_context().rank, current_context().size) == (hvd.rank(), hvd.size())
weight = tf.Variable(1.0)
weight.assign(hvd.allreduce(tf.constant(float(hvd.rank()))))
if hvd.rank() == 0:
    module = tf.Module()
    module.weight = weight
    tf.saved_model.save(module, str(Path(os.environ["HOPS_OUTPUT"]) / "saved_model"))
