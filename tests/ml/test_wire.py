"""Walk of serialized messages: loops of ONNX models are found in any encoding."""

from __future__ import annotations

import random
from typing import Any

import onnx
from campaigns import campaign
from google.protobuf.message import DecodeError
from onnx import helper

from airflow_hops.core.serving_api.wire import has_onnx_loops
from tests.ml.random_encodings import encode

LOOPS = ("Loop", "Scan", "SequenceMap", "BeamSearch")
OTHERS = ("Add", "MatMul", "LoopX", "Scans", "If", "TreeEnsembleClassifier", "")


def graph(draw: random.Random, depth: int) -> Any:
    nodes = []
    for _ in range(draw.randint(0, 3)):
        node = helper.make_node(draw.choice(OTHERS + (LOOPS if draw.random() < 0.1 else ())), ["Loop"], ["Scan"])
        for number in range(draw.randint(0, 3)):
            attribute = node.attribute.add(name=draw.choice(["Loop", "body", f"a{number}"]))
            kind = draw.choice(["ints", "floats", "strings", "graph", "graphs"])
            if kind == "ints":
                attribute.ints.extend(draw.choices([0, 1, 300, -1, 2**62], k=draw.randint(0, 9)))
            elif kind == "floats":
                attribute.floats.extend(draw.choices([0.0, 1.5, 1e30], k=draw.randint(0, 9)))
            elif kind == "strings":
                attribute.strings.extend(draw.choices([b"", b'"\x04Loop', b"Scan"], k=draw.randint(0, 3)))
            elif depth:
                parts = [graph(draw, depth - 1) for _ in range(1 if kind == "graph" else draw.randint(1, 2))]
                attribute.graphs.extend(parts) if kind == "graphs" else attribute.g.CopyFrom(parts[0])
        nodes.append(node)
    made = helper.make_graph(nodes, "Loop", [], [])
    made.initializer.add(name='"\x04Loop', raw_data=b'"\x04Loop"\x04Scan', float_data=[1.0, 2.0], dims=[2])
    return made


def loops_of(nodes: Any) -> bool:
    """Returns whether the library finds a loop."""
    for node in nodes:
        inner = [each.g for each in node.attribute if each.HasField("g")]
        inner += [part for each in node.attribute for part in each.graphs]
        if node.op_type in LOOPS or any(loops_of(part.node) for part in inner):
            return True
    return False


@campaign("draws", 150, 5000)
def test_loops_are_found_in_any_encoding(draws: int) -> None:
    counts = {True: 0, False: 0, None: 0}
    for number in range(draws):
        draw = random.Random(number)
        model = helper.make_model(graph(draw, 3))
        if draw.random() < 0.3:
            function = helper.make_function("f", "F", [], [], list(graph(draw, 2).node), model.opset_import)
            model.functions.append(function)
        encoded = encode(draw, model)
        parsed = onnx.ModelProto.FromString(encoded)
        parsed.DiscardUnknownFields()
        assert parsed == model, number
        if draw.random() < 0.2:
            cut = bytearray(encoded[: draw.randrange(len(encoded) + 1)])
            if cut:
                cut[draw.randrange(len(cut))] = draw.randrange(256)
            encoded = bytes(cut)
        try:
            parsed = onnx.ModelProto.FromString(encoded)
        except DecodeError:
            counts[None] += 1
            continue
        expected = loops_of(parsed.graph.node) or any(loops_of(each.node) for each in parsed.functions)
        assert has_onnx_loops(encoded) or not expected, number
        if len(parsed.SerializeToString()) == len(model.SerializeToString()):
            assert has_onnx_loops(encoded) == expected, number
        counts[expected] += 1
    assert min(counts.values()) > draws / 100
