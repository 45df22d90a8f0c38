"""Element types, shapes and values of shape computations, from the definitions of the operators."""
