"""Trains with tf_keras on Horovod, as its documentation shows it; knows nothing of this project."""

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras.layers import Dense

hvd.init()

STEPS, BATCH = 8, 24
random = np.random.default_rng(0)
x = random.normal(size=(STEPS, BATCH, 4)).astype("float32")
y = (x @ np.float32([[1.0], [-2.0], [0.5], [0.0]])).astype("float32")
mine = slice(hvd.rank() * BATCH // hvd.size(), (hvd.rank() + 1) * BATCH // hvd.size())
dataset = tf.data.Dataset.from_tensor_slices((x[:, mine], y[:, mine]))

keras.utils.set_random_seed(1)
model = keras.Sequential([Dense(8, activation="tanh", input_shape=(4,)), Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse", experimental_run_tf_function=False)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateScheduleCallback(initial_lr=0.01, multiplier=lambda epoch: 0.5**epoch),
]
history = model.fit(dataset, epochs=2, callbacks=callbacks, verbose=0)

package = type(model).__module__.partition(".")[0]
losses = [float(loss) for loss in history.history["loss"]]
weights = [weight.tolist() for weight in model.get_weights()]
ranks = hvd.size()
hvd.shutdown()
