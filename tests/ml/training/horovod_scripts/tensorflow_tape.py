"""Trains with TensorFlow alone on Horovod, as its documentation shows it; knows nothing of this project."""

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

hvd.init()

STEPS, BATCH = 8, 24
random = np.random.default_rng(0)
x = random.normal(size=(STEPS, BATCH, 4)).astype("float32")
y = (x @ np.float32([[1.0], [-2.0], [0.5], [0.0]])).astype("float32")
mine = slice(hvd.rank() * BATCH // hvd.size(), (hvd.rank() + 1) * BATCH // hvd.size())
dataset = tf.data.Dataset.from_tensor_slices((x[:, mine], y[:, mine]))

start = np.random.default_rng(hvd.rank())
kernel = tf.Variable(start.normal(size=(4, 1)), dtype=tf.float32)
bias = tf.Variable([0.0])


@tf.function
def train_step(features, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((features @ kernel + bias - labels) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    for variable, gradient in zip([kernel, bias], tape.gradient(loss, [kernel, bias]), strict=True):
        variable.assign_sub(0.1 * gradient)
    return loss


for step, (features, labels) in enumerate(dataset):
    if step == 0:
        hvd.broadcast_variables([kernel, bias], root_rank=0)
    train_step(features, labels)

package = "tensorflow"
weights = [kernel.numpy().tolist(), bias.numpy().tolist()]
ranks = hvd.size()
hvd.shutdown()
