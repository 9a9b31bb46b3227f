"""Other projects' clients, as their documentation shows them; runs in an environment that has one of them.

``python strangers.py NAME REST_URL GRPC_ADDRESS`` prints a line of JSON: by way, the outputs of ``flights``.
"""

import asyncio
import json
import sys
from urllib.request import Request, urlopen

import numpy as np

ROWS = {
    "carrier": np.array([b"AA", b"UA", "é".encode()], object),
    "distance": np.array([[733.0], [90.0], [1.5]], np.float32),
    "hour": np.array([5, 6, 7], np.int64),
}
TYPES = {"carrier": "BYTES", "distance": "FP32", "hour": "INT64"}
OUTPUTS = ("carrier_id", "score")


def triton(url, address):
    import tritonclient.grpc as grpc_client
    import tritonclient.grpc.aio as grpc_aio
    import tritonclient.http as http_client
    import tritonclient.http.aio as http_aio
    from tritonclient.utils import InferenceServerException

    host = url.removeprefix("http://")
    answers = {}

    def inputs(module, **options):
        made = []
        for name, array in ROWS.items():
            made.append(module.InferInput(name, list(array.shape), TYPES[name]))
            made[-1].set_data_from_numpy(array, **options)
        return made

    def outputs(result):
        return {name: result.as_numpy(name).tolist() for name in OUTPUTS}

    for module, client in (
        (http_client, http_client.InferenceServerClient(host)),
        (grpc_client, grpc_client.InferenceServerClient(address)),
    ):
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("flights")
        assert client.is_model_ready("flights", "2")
        assert not client.is_model_ready("none")
        options = {} if module is http_client else {"as_json": True}
        metadata = client.get_model_metadata("flights", **options)
        assert [each["name"] for each in metadata["inputs"]] == sorted(ROWS)
        assert client.get_server_metadata(**options)["name"] == "airflow-hops"
        name = module.__name__
        answers[name] = outputs(client.infer("flights", inputs(module), model_version="2", request_id="r"))
        for algorithm in ("gzip", "deflate"):
            if module is http_client:
                zipped = {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
            else:
                zipped = {"compression_algorithm": algorithm}
            answers[f"{name} {algorithm}"] = outputs(
                client.infer("flights", inputs(module), model_version="2", **zipped)
            )
        future = client.async_infer if module is http_client else None
        if future is not None:
            answers[f"{name} async"] = outputs(future("flights", inputs(module), model_version="2").get_result())
        message = "answered without inputs"
        try:
            client.infer("flights", inputs(module)[:1])
        except InferenceServerException as error:
            message = error.message()
        assert "Missing but required: {distance,hour}" in message, message
    asked = [http_client.InferRequestedOutput(name, binary_data=False) for name in OUTPUTS]
    client = http_client.InferenceServerClient(host)
    result = client.infer("flights", inputs(http_client, binary_data=False), model_version="2", outputs=asked)
    answers["json"] = outputs(result)

    async def wait():
        async with http_aio.InferenceServerClient(host) as client:
            answers["http aio"] = outputs(await client.infer("flights", inputs(http_client), model_version="2"))
            assert await client.is_model_ready("flights")
        async with grpc_aio.InferenceServerClient(address) as client:
            answers["grpc aio"] = outputs(await client.infer("flights", inputs(grpc_client), model_version="2"))
            assert await client.is_server_ready()

    asyncio.run(wait())
    return answers


def kserve(url, address):
    from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
    from kserve.inference_client import RESTConfig

    def request(binary):
        made = []
        for name, array in ROWS.items():
            made.append(InferInput(name, list(array.shape), TYPES[name]))
            text = np.array([value.decode() for value in array], object) if array.dtype == object else array
            made[-1].set_data_from_numpy(text, binary_data=binary)
        return InferRequest("flights", made, request_id="r")

    def outputs(response):
        assert response.id == "r"
        return {each.name: each.as_numpy().tolist() for each in response.outputs}

    async def wait():
        client = InferenceRESTClient(RESTConfig(protocol="v2"))
        assert await client.is_server_live(url)
        assert await client.is_server_ready(url)
        assert await client.is_model_ready(url, "flights")
        over_grpc = InferenceGRPCClient(address)
        assert await over_grpc.is_server_live()
        assert await over_grpc.is_server_ready()
        assert await over_grpc.is_model_ready("flights")
        answers = {}
        for binary in (True, False):
            answers[f"rest {binary}"] = outputs(await client.infer(url, request(binary), model_name="flights"))
            answers[f"grpc {binary}"] = outputs(await over_grpc.infer(request(binary)))
        await over_grpc.close()
        return answers

    return asyncio.run(wait())


def mlserver(url, address):
    import grpc
    import pandas as pd
    from mlserver.codecs import NumpyCodec, PandasCodec
    from mlserver.codecs.json import encode_to_json_bytes
    from mlserver.grpc import converters, dataplane_pb2_grpc
    from mlserver.types import InferenceResponse

    texts = pd.Series([value.decode() for value in ROWS["carrier"]], dtype=object)
    frame = pd.DataFrame({"carrier": texts, "distance": ROWS["distance"][:, 0], "hour": ROWS["hour"]})

    def outputs(response):
        shaped = {each.name: NumpyCodec.decode_output(each).tolist() for each in response.outputs}
        frame = PandasCodec.decode_response(response)  # each output is a column
        assert frame["carrier_id"].tolist() == shaped["carrier_id"]
        return shaped

    body = encode_to_json_bytes(PandasCodec.encode_request(frame).model_dump(exclude_none=True))
    with urlopen(Request(f"{url}/v2/models/flights/infer", body, {"Content-Type": "application/json"})) as response:
        answers = {"rest": outputs(InferenceResponse.model_validate_json(response.read()))}
    with grpc.insecure_channel(address) as channel:
        stub = dataplane_pb2_grpc.GRPCInferenceServiceStub(channel)
        for is_raw in (True, False):
            message = converters.ModelInferRequestConverter.from_types(
                PandasCodec.encode_request(frame), model_name="flights", model_version="2", use_raw=is_raw
            )
            answer = stub.ModelInfer(message)
            assert bool(answer.raw_output_contents) == is_raw
            answers[f"grpc {is_raw}"] = outputs(converters.ModelInferResponseConverter.to_types(answer))
    return answers


if __name__ == "__main__":
    name, url, address = sys.argv[1:]
    print(json.dumps({"triton": triton, "kserve": kserve, "mlserver": mlserver}[name](url, address)))
