"""TensorFlow's own strategies on the ranks of a gang, as an alternative to Horovod.

The ranks build ``TF_CONFIG`` themselves: each binds a port of its host and sends it to the others. It keeps the port
bound until it ends, so that no other process gets it; TensorFlow's server can listen there, since it sets
``SO_REUSEADDR``.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from typing import Any

from airflow_hops.core.errors import InvalidArgument
from airflow_hops.core.extensions import STRATEGIES, extensions
from airflow_hops.core.names import check_known
from airflow_hops.core.training.options import (
    HOROVOD,
    MULTI_WORKER_MIRRORED,
    OF_KERAS,
    PARAMETER_SERVER,
    SINGLE,
    TrainingOptions,
)
from airflow_hops.ml.training.digests import SAME_ON_ALL_RANKS
from airflow_hops.ml.training.gang import Channel, Placement
from airflow_hops.ml.training.gang.rendezvous import SharedValues, own_address

# Order: bind a port, exchange all addresses through the rendezvous server, set TF_CONFIG, create the strategy (which
# connects), run the user's code, exchange `finished`. Ranks that only serve wait for `finished`, because TensorFlow's
# servers have no method to stop them; ending the process ends them. The waits send signs of life, so that they do not
# count as stalls.


@dataclass(frozen=True)
class Roles:
    """Roles of the ranks.

    Attributes:
        strategy: One of TensorFlow's, Horovod's, ``single``, or a registered one.
        ranks: All ranks; with parameter servers, includes a chief, which runs the user's code.
        parameter_servers: Ranks that hold variables.

    Raises:
        BadInput: the strategy is unknown, or does not match the number of parameter servers or ranks.
    """

    strategy: str = HOROVOD
    ranks: int = 2
    parameter_servers: int = 0

    def __post_init__(self) -> None:
        check_known("strategy", self.strategy, (*OF_KERAS, SINGLE, *extensions(STRATEGIES)))
        wants = self.strategy == PARAMETER_SERVER
        if wants != (self.parameter_servers > 0):
            expected = "1 or more" if wants else f"0, as the strategy is {self.strategy!r}"
            raise InvalidArgument("parameter_servers", self.parameter_servers, f", expected {expected}")
        if self.strategy == SINGLE and self.ranks != 1:
            raise InvalidArgument("np", self.ranks, f", expected 1, as the strategy is {SINGLE!r}")

    @classmethod
    def of_training(cls, options: TrainingOptions) -> Roles:
        """Returns the roles of a training in which ``np`` ranks train.

        Raises:
            BadInput: ``np`` is not a number, or as for the class.
        """
        if isinstance(options.np, bool) or not isinstance(options.np, int):
            raise InvalidArgument("np", options.np, ", expected a number of ranks, 1 or more")
        others = 1 + options.parameter_servers if options.strategy == PARAMETER_SERVER else 0
        return cls(options.strategy, options.np + others, options.parameter_servers)

    @property
    def cpu_ranks(self) -> frozenset[int]:
        """Ranks that need no GPU, since they do not train: chief and parameter servers."""
        if self.strategy != PARAMETER_SERVER:
            return frozenset()
        return frozenset(rank for rank in range(self.ranks) if self.task(rank)[0] != "worker")

    def task(self, rank: int) -> tuple[str, int]:
        """Returns type and index of a rank's task in the cluster."""
        if self.strategy != PARAMETER_SERVER:
            return "worker", rank
        if rank == 0:
            return "chief", 0
        workers = self.ranks - 1 - self.parameter_servers
        return ("worker", rank - 1) if rank <= workers else ("ps", rank - workers - 1)


class Member:
    """Member of a TensorFlow cluster.

    Args:
        roles: Roles of all ranks.
        placement: Placement of this rank.
        channel: Channel to the watching process.

    Attributes:
        strategy: The ``tf.distribute.Strategy`` of ranks that run the user's code; None for others.
    """

    def __init__(self, roles: Roles, placement: Placement, channel: Channel) -> None:
        self._roles = roles
        self._values = SharedValues("hops-cluster", placement, channel)
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind(("", 0))
        rendezvous = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
        every = self._values.exchange("address", f"{own_address(rendezvous)}:{self._port.getsockname()[1]}")
        cluster: dict[str, list[str]] = {}
        for rank, address in enumerate(every):
            cluster.setdefault(self._roles.task(rank)[0], []).append(address)
        kind, index = self._roles.task(placement.rank)
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
        self.strategy = self._join()

    @property
    def runs_user_code(self) -> bool:
        """Whether this rank runs the user's code."""
        return self.strategy is not None

    def serve(self) -> None:
        """Serves the chief's requests until it has finished."""
        self._values.wait("finished")

    def check_weights(self, model: object, features: object = None) -> str:
        """Returns the checksum of the state that predictions depend on, which must be equal on all workers.

        Raises:
            BadInput: it differs, or a weight is NaN or infinite.
        """
        from airflow_hops.ml.training.keras import weights_checksum
        from airflow_hops.ml.training.keras.inference_state import inference_digests

        weights_checksum(model)
        advice = f"make the model, and compile it, within context.strategy.scope(); {SAME_ON_ALL_RANKS}"
        return self._values.check_equal(inference_digests(model, features), advice)

    def finish(self) -> None:
        """Signals that this rank has finished; waits for the others unless there are parameter servers."""
        if self._roles.strategy == PARAMETER_SERVER:
            if self.runs_user_code:
                self._values.put("finished", "yes")
        else:
            self._values.exchange("finished", "yes")
        self._port.close()

    def _join(self) -> Any:
        import tensorflow as tf

        if self._roles.strategy == MULTI_WORKER_MIRRORED:
            return tf.distribute.MultiWorkerMirroredStrategy()
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        if resolver.task_type == "chief":
            return tf.distribute.ParameterServerStrategy(resolver)
        self._server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
        )
        return None
