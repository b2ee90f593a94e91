"""Words: the values and pure decisions everything else is made of. No I/O, no clock, no database."""
