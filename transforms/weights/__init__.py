"""Float weights and stored codes: finding them, and choosing their types."""
