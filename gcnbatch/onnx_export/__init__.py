"""A run as one ONNX file, and a file of plain Python that makes its inputs from SMILES.

`networks` and `members` write the models of a run as ONNX nodes (`graph`), `outputs` their mean, mixture and deviation.
`inputs` makes the inputs from batches of ours; `plain` is the Python file beside the model.
"""
