"""The fused backend: a training step is a few kernel launches, which a CUDA graph captures once and replays.

Each form of the step has a folder (`narrow`, `wide`, `fp16`, `kipf`); `shared` has what they have in common. `engine`
replays a form's launches as CUDA graphs. ``cuda_src/fused/FUSED.md`` follows a step through its kernels.
"""
