"""A training as it is written for horovodrun: says how many steps a second it makes, its first ones left out."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import horovod.tensorflow as hvd
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3000)
parser.add_argument("--batch", type=int, default=256)
parser.add_argument("--threads", type=int, default=1)
given = parser.parse_args()

tf.config.threading.set_intra_op_parallelism_threads(given.threads)
tf.config.threading.set_inter_op_parallelism_threads(given.threads)
hvd.init()
tf.random.set_seed(hvd.rank())
random = tf.random.Generator.from_seed(hvd.rank())
numbers = random.normal((given.batch * 64, 16))
ids = random.uniform((given.batch * 64, 3), 0, 100, tf.int64)
labels = tf.cast(numbers[:, :1] > 0, tf.float32)

shapes = [(100, 8), (40, 64), (64,), (64, 64), (64,), (64, 1), (1,)]
variables = [tf.Variable(random.normal(shape, stddev=0.1)) for shape in shapes]
moments = [[tf.Variable(tf.zeros_like(variable)) for variable in variables] for _ in range(2)]
hvd.broadcast_variables(variables, root_rank=0)


@tf.function
def step(number: tf.Tensor) -> tf.Tensor:
    """One step of Adam on the averaged gradients."""
    first = (number % 64) * given.batch
    with tf.GradientTape() as tape:
        looked_up = tf.gather(variables[0], ids[first : first + given.batch])
        hidden = tf.concat([numbers[first : first + given.batch], tf.reshape(looked_up, (given.batch, 24))], axis=1)
        hidden = tf.nn.relu(hidden @ variables[1] + variables[2])
        hidden = tf.nn.relu(hidden @ variables[3] + variables[4])
        logits = hidden @ variables[5] + variables[6]
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels[first : first + given.batch], logits))
    tape = hvd.DistributedGradientTape(tape, sparse_as_dense=True)
    for variable, gradient, mean, square in zip(variables, tape.gradient(loss, variables), *moments, strict=True):
        mean.assign(0.9 * mean + 0.1 * gradient)
        square.assign(0.999 * square + 0.001 * gradient**2)
        variable.assign_sub(1e-3 * mean / (tf.sqrt(square) + 1e-7))
    return loss


first_measured = given.steps // 10
began = 0.0
for number in range(given.steps):
    if number == first_measured:
        began = time.perf_counter()
    step(tf.constant(number, tf.int64))
seconds = time.perf_counter() - began
if hvd.rank() == 0:
    print(f"steps_per_second {(given.steps - first_measured) / seconds:.2f}", flush=True)

if hvd.rank() == 0 and "HOPS_OUTPUT" in os.environ:
    module = tf.Module()
    module.weights = variables
    tf.saved_model.save(module, str(Path(os.environ["HOPS_OUTPUT"]) / "saved_model"))
