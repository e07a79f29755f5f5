"""PyCUDA, the compiler and the device: nothing else in the package calls CUDA."""
