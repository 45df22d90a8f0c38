"""The checker of certificates. It uses the definitions of operators and nothing of the prover."""
