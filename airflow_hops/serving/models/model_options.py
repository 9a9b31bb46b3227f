"""Options for opening models of all formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_hops.serving.flags import Flags
from airflow_hops.serving.models.lookups import OpenLookup, lookups
from airflow_hops.serving.models.servable import MakeBatcher, OpenBatching
from airflow_hops.serving.parts import server_parts


@dataclass(frozen=True)
class ModelOptions:
    """Options that come from the server's flags.

    Attributes:
        tags: Tags of a SavedModel's meta graph.
        intra_op_threads: Threads of one TensorFlow operation; 0 lets TensorFlow choose.
        inter_op_threads: Threads that run the operations of one request; 0 runs them in the request's own thread, which
            avoids a hand-over (6 instead of 50 microseconds a call for a small model) and is no slower under load.
        tensor_content: Whether Predict responses use ``tensor_content`` instead of typed fields.
        check_method_names: Whether Classify and Regress accept only signatures with that method name; TensorFlow 2
            does not write it.
        allow_pickled: Whether pickled models are loaded; a pickle can run arbitrary code.
        trusted_skops_types: Types that skops files may hold in addition to those that skops trusts.
        batching: Batching of all versions; None to run each request alone.
        batcher: Batching of one version.
        warmup_iterations: How often each warm-up request is run before a version becomes available.
        lookups: Functions that open versions whose inputs are looked up, by name of the look-up.
    """

    tags: tuple[str, ...] = ("serve",)
    intra_op_threads: int = 0
    inter_op_threads: int = 0
    tensor_content: bool = False
    check_method_names: bool = False
    allow_pickled: bool = False
    trusted_skops_types: tuple[str, ...] = ()
    batching: OpenBatching | None = None
    batcher: MakeBatcher | None = None
    warmup_iterations: int = 1
    lookups: Mapping[str, OpenLookup] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, flags: Flags) -> ModelOptions:
        """Returns the options of the flags.

        Raises:
            StartError: A file that a part's flags name is not valid.
        """
        return cls(
            tags=tuple(flags.saved_model_tags.split(",")),
            intra_op_threads=flags.tensorflow_intra_op_parallelism,
            inter_op_threads=flags.tensorflow_inter_op_parallelism,
            tensor_content=flags.enable_serialization_as_tensor_content,
            check_method_names=flags.enable_signature_method_name_check,
            allow_pickled=flags.allow_pickled_models,
            trusted_skops_types=tuple(name for name in flags.trusted_skops_types.split(",") if name),
            batching=next(filter(None, (part.batching(flags) for part in server_parts().values())), None),
            lookups={name: lookup.opener(flags) for name, lookup in lookups().items()},
            warmup_iterations=(flags.num_request_iterations_for_warmup or 1) if flags.enable_model_warmup else 0,
        )
