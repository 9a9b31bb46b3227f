"""A training as it is written for horovodrun and the Keras before 3."""

import argparse

import horovod.tensorflow.keras as hvd
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
arguments = parser.parse_args()

hvd.init()
tf.keras.utils.set_random_seed(hvd.rank())
numeric = tf.keras.Input((2,), name="numeric")
kind = tf.keras.Input((), dtype=tf.int64, name="kind_id")
every = tf.keras.layers.Concatenate()([numeric, tf.keras.layers.Embedding(5, 2)(kind)])
model = tf.keras.Model(
    {"numeric": numeric, "kind_id": kind}, tf.keras.layers.Dense(1, activation="sigmoid")(every), name="of_a_script"
)
model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.Adam(arguments.lr * hvd.size())), "binary_crossentropy")

features = {"numeric": tf.random.normal((256, 2)), "kind_id": tf.random.uniform((256,), 0, 5, tf.int64)}
labels = tf.cast(features["numeric"][:, 0] > 0, tf.float32)
model.fit(
    features,
    labels,
    batch_size=32,
    verbose=0,
    callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()],
)
package = type(model).__module__.partition(".")[0]
print(f"rank {hvd.rank()} of {hvd.size()} has trained with {package}", flush=True)
