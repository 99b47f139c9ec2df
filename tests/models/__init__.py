"""Models that tests, examples and benchmarks share."""
