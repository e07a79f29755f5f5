"""Dense operations on a device; each module has an operation's launches and their geometry."""
