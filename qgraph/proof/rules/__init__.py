"""Rules of operators for bounds: what each computes in real numbers, and how far it is off."""
