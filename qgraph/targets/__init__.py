"""What runtimes support."""
