"""Find the quantizers that cost accuracy: local errors, and exchange of single quantizers."""
