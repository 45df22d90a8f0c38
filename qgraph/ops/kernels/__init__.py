"""NumPy kernels of operators that are defined elsewhere."""
