"""The contents of a model: its quantizers, described and compared independently of dialects."""
