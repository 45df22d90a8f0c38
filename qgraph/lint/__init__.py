"""Rules about quantized models, a file for each family."""
