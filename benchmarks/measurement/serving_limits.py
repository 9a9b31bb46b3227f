"""Upper limits of servers of this kind: an echo over the same gRPC library, and the model called in process."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from airflow_hops.core.processes.forks import fork


def echo(ready_file: str, answers: str, threads: int, processes: int) -> None:
    """Answers at a port that processes share."""
    holder = socket.socket()  # it never listens, so that no connection comes to it
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(("127.0.0.1", 0))
    port = holder.getsockname()[1]
    read, write = os.pipe()
    for _ in range(processes):
        fork(lambda: _echo(Path(answers), threads, port, write))
    for _ in range(processes):
        os.read(read, 1)
    Path(ready_file).write_text(json.dumps({"grpc_port": port}))
    os.wait()


def _echo(folder: Path, threads: int, port: int, started: int) -> None:
    """Answers each ``Predict`` with the bytes of ``<request's length>.answer`` if there are any, else with its own."""
    import grpc

    answers = {int(path.stem): path.read_bytes() for path in folder.glob("*.answer")}
    handler = grpc.unary_unary_rpc_method_handler(lambda message, context: answers.get(len(message), message))
    server = grpc.server(ThreadPoolExecutor(threads), options=[("grpc.max_receive_message_length", -1)])
    service = "tensorflow.serving.PredictionService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Predict": handler}),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    os.write(started, b"+")
    server.wait_for_termination()


def in_process(saved_model: str, body_file: str, seconds: float, answer_file: str) -> None:
    """Calls the model in a loop: message to arrays, one run, arrays to message; by our code and by TensorFlow's."""
    from airflow_hops.core.serving_api.protocol import Method
    from airflow_hops.serving.models.formats import ModelOptions, open_model
    from airflow_hops.serving.models.servable import Call

    body = Path(body_file).read_bytes()
    folder = Path(saved_model)
    servable = open_model(folder.parent.name, int(folder.name), folder, ModelOptions())
    call = Call(Method.PREDICT, body)
    Path(answer_file).write_bytes(servable.answer(call).message)
    ours = _rate(lambda: servable.answer(call), seconds)

    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    signature = tf.saved_model.load(saved_model).signatures["serving_default"]

    def tensorflow() -> None:
        request = predict_pb2.PredictRequest.FromString(body)
        inputs = {name: tf.constant(tf.make_ndarray(proto)) for name, proto in request.inputs.items()}
        response = predict_pb2.PredictResponse()
        for name, tensor in signature(**inputs).items():
            response.outputs[name].CopyFrom(tf.make_tensor_proto(tensor.numpy()))
        response.SerializeToString()

    print(json.dumps({"session": ours, "concrete_function": _rate(tensorflow, seconds)}))


def _rate(work: object, seconds: float) -> dict[str, float]:
    """Calls a second, and a CPU second."""
    assert callable(work)
    for _ in range(50):
        work()
    calls, began, cpu_began = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        work()
        calls += 1
    return {
        "rate": calls / (time.perf_counter() - began),
        "per_core": calls / (time.process_time() - cpu_began),
    }


if __name__ == "__main__":
    if sys.argv[1] == "echo":
        echo(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        in_process(sys.argv[2], sys.argv[3], float(sys.argv[4]), sys.argv[5])
