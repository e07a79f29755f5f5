"""The dense operations on a device, each with its launch geometry."""
