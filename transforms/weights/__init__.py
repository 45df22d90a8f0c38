"""Float weights and stored codes: where they are, and the types that hold them."""
