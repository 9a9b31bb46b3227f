"""TensorFlow's own strategies on the ranks of a gang, as an alternative to Horovod.

The ranks build ``TF_CONFIG`` themselves: each binds a port of its host and sends it to the others. It keeps the port
bound until it ends, so that no other process gets it; TensorFlow's server can listen there, since it sets
``SO_REUSEADDR``.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from typing import Any

from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.training.options import PARAMETER_SERVER, TrainingOptions
from airflow_hops.ml.training.digests import SAME_ON_ALL_RANKS
from airflow_hops.ml.training.gang import Channel, Placement
from airflow_hops.ml.training.gang.rendezvous import SharedValues
from airflow_hops.ml.training.stage.rank_group import RankGroup

# Order: bind a port, exchange all addresses through the rendezvous server, set TF_CONFIG, create the strategy (which
# connects), run the user's code, exchange `finished`. Ranks that only serve wait for `finished`, because TensorFlow's
# servers have no method to stop them; ending the process ends them. The waits send signs of life, so that they do not
# count as stalls.


class TensorFlowCluster(RankGroup):
    """Member of a TensorFlow cluster: of mirrored workers, or of a chief, workers and parameter servers."""

    trains_keras = True

    def __init__(self, placement: Placement, channel: Channel, options: TrainingOptions, threads: int) -> None:
        from airflow_hops.ml.training.keras.legacy import use_tf_keras

        use_tf_keras()  # Keras 3.15: supports none of these strategies
        self.is_alone, self._gathered = options.strategy == PARAMETER_SERVER, 0
        self._values = SharedValues("hops-cluster", placement, channel)
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind(("", 0))
        every = self._values.exchange("address", f"{self._values.own_address}:{self._port.getsockname()[1]}")
        cluster: dict[str, list[str]] = {}
        for rank, address in enumerate(every):
            cluster.setdefault(_task(options, rank)[0], []).append(address)
        kind, index = _task(options, placement.rank)
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
        self.strategy = self._join()

    @classmethod
    def cpu_ranks(cls, options: TrainingOptions) -> frozenset[int]:
        """Returns the chief and the parameter servers."""
        if options.strategy != PARAMETER_SERVER:
            return frozenset()
        if options.parameter_servers < 1:
            raise InvalidArgument("parameter_servers", options.parameter_servers, ", expected 1 or more")
        every = range(1 + options.np + options.parameter_servers)
        return frozenset(rank for rank in every if _task(options, rank)[0] != "worker")

    def serve(self) -> bool:
        """Serves the chief's requests until it has finished, if this is a worker of it or a parameter server."""
        if self.strategy is None:
            self._values.wait("finished")
        return self.strategy is None

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Returns the numbers of each rank, by rank; every rank must call it with equally many."""
        self._gathered += 1
        every = self._values.exchange(f"gathered-{self._gathered}", json.dumps([float(value) for value in values]))
        return [json.loads(each) for each in every]

    def check_weights(self, model: Any) -> str:
        """Returns the checksum of the state that predictions depend on, which must be equal on all workers.

        Raises:
            BadInput: it is not a Keras model, the workers differ, or a weight is NaN or infinite.
        """
        from airflow_hops.ml.training.keras import weights_checksum
        from airflow_hops.ml.training.keras.inference_state import inference_digests

        if not hasattr(model, "get_weights"):
            raise BadInput(f"the model is a {type(model).__name__}, expected a keras.Model")
        checksum = weights_checksum(model)
        if self.is_alone:  # there is one copy of the weights
            return checksum
        advice = f"make the model, and compile it, within context.strategy.scope(); {SAME_ON_ALL_RANKS}"
        return self._values.check_equal(inference_digests(model), advice)

    def finish(self) -> None:
        """Signals that this rank has finished; waits for the others unless there are parameter servers."""
        if self.is_alone:
            self._values.put("finished", "yes")
        else:
            self._values.exchange("finished", "yes")
        self._port.close()

    def _join(self) -> Any:
        import tensorflow as tf

        if not self.is_alone:
            return tf.distribute.MultiWorkerMirroredStrategy()
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        if resolver.task_type == "chief":
            return tf.distribute.ParameterServerStrategy(resolver)
        self._server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
        )
        return None


def _task(options: TrainingOptions, rank: int) -> tuple[str, int]:
    """Returns type and index of a rank's task in the cluster; the chief, which runs the user's code, is rank 0."""
    if options.strategy != PARAMETER_SERVER:
        return "worker", rank
    if rank == 0:
        return "chief", 0
    return ("worker", rank - 1) if rank <= options.np else ("ps", rank - 1 - options.np)
