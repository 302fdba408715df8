"""The Python half of the benchmark harness."""
