"""A run as one ONNX file, and a file of plain Python that makes its inputs from SMILES.

`networks` and `members` write the models of a run as ONNX nodes (`graph`), `outputs` their mean, mixture and deviation.
`plain` is the Python file beside the model.
"""
