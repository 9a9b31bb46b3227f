"""Classifiers whose probabilities are maps by class, which are no tensors: the default of skl2onnx and onnxmltools."""

from __future__ import annotations

from pathlib import Path


def unzip_probabilities(file: Path) -> None:
    """Has the graph in a file give the tensor of which it makes maps; any other graph stays as it is.

    Args:
        file: An ONNX file, which is written anew if there are such maps.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(file, load_external_data=False)
    except DecodeError:
        return  # opening it says what is wrong
    graph = model.graph
    tensors = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "ZipMap"}
    if not tensors:
        return
    for node in [node for node in graph.node if node.op_type == "ZipMap"]:
        graph.node.remove(node)
    for output in [output for output in graph.output if output.name in tensors]:
        # Its own name, by which it may have been chosen as the prediction.
        graph.node.append(onnx.helper.make_node("Identity", [tensors[output.name]], [output.name]))
        output.CopyFrom(onnx.helper.make_tensor_value_info(output.name, onnx.TensorProto.FLOAT, None))
    onnx.save(model, file)
