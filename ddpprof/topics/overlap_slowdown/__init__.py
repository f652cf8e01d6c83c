"""The slowdown of computation by concurrent communication."""
