"""The third implementation: hand-written CUDA kernels, on a GPU or a CPU. Knows nothing of frameworks, cases, verdicts."""
