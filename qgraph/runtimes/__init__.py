"""What runtimes can load, told from their documentation and from trials."""
