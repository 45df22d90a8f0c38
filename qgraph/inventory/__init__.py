"""What is in a model: its quantizers, described and compared whatever their dialect."""
