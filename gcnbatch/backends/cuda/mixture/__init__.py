"""The members of a mixture beside the networks on a device: the kernel's similarities, and forests."""
