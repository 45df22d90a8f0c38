"""The checker of certificates, which uses the definitions of operators and no part of the prover.

Functions of this package raise EquivalenceError if a statement of a certificate is false, and
UnsupportedError if the checker cannot decide it.
"""
