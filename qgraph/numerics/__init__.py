"""Number formats and their arithmetic: plain NumPy arrays in and out, no graph, no ONNX."""
