"""Imports of molecules from Python, and the command ``gcnbatch data import smiles``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gcnbatch.data.atom_features import ATOM_FEATURES
from gcnbatch.data.featurizer_options import FeaturizerOptions
from gcnbatch.data.importers.smiles import import_smiles as import_file
from gcnbatch.data.refusals import MAX_ATOMS
from gcnbatch.data.schema import Target
from gcnbatch.data.tables.layout import TableFormat

if TYPE_CHECKING:
    from gcnbatch.data.importers.common import ImportSummary
    from gcnbatch.fileio import StrPath


def import_smiles(
    source: StrPath,
    out: StrPath,
    *,
    smiles_column: str = "",
    id_column: str = "",
    target_columns: Sequence[str] | None = None,
    no_targets: bool = False,
    split_column: str = "",
    feature_columns: Sequence[str] = (),
    task: Target | None = None,
    delimiter: str = "",
    decimal: str = "",
    missing: Sequence[str] = (),
    encoding: str = "",
    largest_fragment: bool = False,
    neutralize: bool = False,
    bond_channels: bool = False,
    self_loops: bool = True,
    normalize: bool = False,
    max_nodes: int = MAX_ATOMS,
    bond_properties: Sequence[str] = (),
    atom_features: str = ATOM_FEATURES,
    positional: str = "",
    descriptors: str = "",
    fingerprint: str = "",
    fingerprint_radius: int = 2,
    fingerprint_size: int = 2048,
    skip_bad_rows: bool = False,
    processes: int = 0,
    name: str = "",
    progress: bool = False,
) -> ImportSummary:
    r"""Convert a table or a structure file of molecules into a data set file; see ``gcnbatch data import smiles``.

    Parameters
    ----------
    source, out : path
        .csv, .tsv, .txt, .smi, .sdf (also .gz, .bz2, .zst), .xlsx or .parquet; and the HDF5 file.
    smiles_column, id_column, target_columns, split_column, feature_columns
        Columns of a table; empty: detected, no split, no own features of molecules.
    task : {"binary", "regression", "multiclass"}
        Kind of the targets; None: by their values.
    delimiter, decimal, encoding : str
        Sign between fields, decimal sign and encoding (such as ``"cp1252"``) of a text table; empty: detected.
    missing : sequence of str
        Further texts of missing values, in any case, beside NA, None, ? and the like.
    bond_channels, self_loops, normalize, max_nodes, largest_fragment, neutralize
        Contents of a graph, as for `gcnbatch.from_smiles`.
    bond_properties : sequence of {"ring", "conjugated", "stereo"}
        Further channels of bonds.
    atom_features : {"deepchem75", "extended86"}
    positional : str
        ``"rw8"``: eight columns of random-walk encodings per atom.
    descriptors, fingerprint : {"", "rdkit2d"}, {"", "morgan", "morgan-chiral"}
        Features of whole molecules, which a model joins to its readout.
    fingerprint_radius, fingerprint_size : int
        Bonds from a fragment's centre; columns.
    skip_bad_rows : bool
        Leave out molecules that give no graph and list them in ``OUT.skipped.csv``.

    Returns
    -------
    ImportSummary
        Counts, remarks, and the use of each column.

    Raises
    ------
    InputError
        For an invalid table and, without `skip_bad_rows`, for molecules that give no graph.

    Examples
    --------
    >>> from pathlib import Path
    >>> import gcnbatch
    >>> text = "smiles,logS\nCCO,0.2\nc1ccccc1,-1.9\n"
    >>> Path("molecules.csv").write_text(text) == len(text)
    True
    >>> gcnbatch.import_smiles("molecules.csv", "molecules.h5").graphs
    2
    """
    return import_file(
        source,
        out,
        FeaturizerOptions(
            bond_channels, self_loops, normalize, max_nodes, largest_fragment, neutralize, atom_features=atom_features
        ).with_texts(list(bond_properties), positional, descriptors, fingerprint, fingerprint_radius, fingerprint_size),
        smiles_column=smiles_column,
        id_column=id_column,
        target_columns=None if target_columns is None else list(target_columns),
        no_targets=no_targets,
        split_column=split_column,
        feature_columns=feature_columns,
        task=task,
        table_format=TableFormat(delimiter, decimal, encoding, tuple(missing)),
        skip_bad_rows=skip_bad_rows,
        processes=processes,
        name=name,
        progress=progress,
    )
