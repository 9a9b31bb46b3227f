"""Conversion of trained models to ONNX, and import of models that were trained elsewhere."""
