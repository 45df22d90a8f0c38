"""Files that a run writes: guarded, locked, and published together or not at all."""
