"""The compiler, the kernel cache and the device. Only this package calls CUDA."""
