"""Find the changes that runtimes make to a model."""
