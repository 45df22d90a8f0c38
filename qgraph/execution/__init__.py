"""Running a model, node by node in NumPy or as sessions of ONNX Runtime."""
