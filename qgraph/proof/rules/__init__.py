"""Rules of operators for bounds: the ideal result in real numbers, and the error of execution."""
