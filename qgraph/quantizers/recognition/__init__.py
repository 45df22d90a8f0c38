"""Recognition of quantizers that are written in float operators."""
