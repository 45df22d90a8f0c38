"""An example of a plugin of qgraph."""
