"""Train graph convolutional networks on many small graphs or one large graph, with interchangeable backends."""

__version__ = "0.1.0"
