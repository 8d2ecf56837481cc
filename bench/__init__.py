"""Benchmarks: kernels against frameworks, judging against what it judges."""
