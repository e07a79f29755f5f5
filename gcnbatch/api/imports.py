"""Imports of molecules from Python, and the command ``gcnbatch data import smiles``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gcnbatch import startup
from gcnbatch.data.tables.layout import TableFormat
from gcnbatch.options.declaration import arguments, part
from gcnbatch.options.imports import ColumnOptions, ImportSmilesOptions, MoleculeOptions

if TYPE_CHECKING:
    from gcnbatch.data.featurizer_options import FeaturizerOptions
    from gcnbatch.data.importers.common import ImportSummary
    from gcnbatch.workers.pool import Workers


@arguments(ImportSmilesOptions)
def import_smiles(given: ImportSmilesOptions) -> ImportSummary:
    r"""Convert a table or a structure file of molecules into a data set file; see ``gcnbatch data import smiles``.

    Returns
    -------
    ImportSummary
        Counts, remarks, and the use of each column.

    Raises
    ------
    InputError
        For an invalid table and, without ``on_bad_row="skip"``, for molecules that give no graph.

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
    return import_table(given)


def import_table(given: ImportSmilesOptions, find_split: bool = False, workers: Workers | None = None) -> ImportSummary:
    """Convert a table; `find_split`: take the only column of train and test rows as the split.

    `workers` are processes of `startup.molecule_workers`, which end with the import; None: they are started here.
    """
    with workers or startup.molecule_workers(given.source, given.processes) as own:
        from gcnbatch.data.importers.smiles import import_smiles as import_file

        return import_file(
            given.source,
            given.out,
            featurizer(given),
            **part(given, ColumnOptions),
            no_targets=given.no_targets,
            find_split=find_split,
            table_format=TableFormat(given.delimiter, given.decimal, given.encoding, tuple(given.missing)),
            skip_bad_rows=given.on_bad_row == "skip",
            processes=given.processes,
            name=given.name,
            progress=given.progress,
            workers=own,
        )


def featurizer(given: MoleculeOptions) -> FeaturizerOptions:
    """Return what a molecule becomes."""
    from gcnbatch.data.featurizer_options import FeaturizerOptions

    return FeaturizerOptions(
        given.bond_channels,
        given.self_loops,
        given.normalize,
        given.max_nodes,
        given.largest_fragment,
        given.neutralize,
        atom_features=given.atom_features,
    ).with_texts(
        list(given.bond_properties),
        given.positional,
        given.descriptors,
        given.fingerprint,
        given.fingerprint_radius,
        given.fingerprint_size,
    )
