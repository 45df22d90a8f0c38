"""stopgap"""
from qgraph.exactness import Exactness
def grade(f,r):
    return Exactness.DIFFERENT if f.differing or f.infinity_differs else Exactness.VALUES if f.zero_sign else Exactness.BITS
