"""What several runtimes make of one model."""
