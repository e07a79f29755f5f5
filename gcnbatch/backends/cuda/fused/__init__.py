"""The fused backend: a training step in a few launches, captured once and replayed as one graph.

A folder for each form of the step (`narrow`, `wide`, `fp16`, `kipf`), and `shared`; `engine` runs a form's launches as
replays of a CUDA graph. ``cuda_src/fused/FUSED.md`` follows a step through its kernels.
"""
