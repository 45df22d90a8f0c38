"""The graph of a model: names, versions, inference and editing."""
