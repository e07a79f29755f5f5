"""The choice of molecules to measure from Python, and the command ``gcnbatch select``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch.api.imports import import_table
from gcnbatch.api.options import Options, load, optional_path
from gcnbatch.api.prediction import predicting
from gcnbatch.api.run import folders_of
from gcnbatch.api.sources import RECIPE
from gcnbatch.errors import InputError
from gcnbatch.options.declaration import arguments
from gcnbatch.options.imports import ImportSmilesOptions
from gcnbatch.options.selection import AcquisitionOptions, CampaignOptions, SelectOptions
from gcnbatch.resources import shipped_config

if TYPE_CHECKING:
    from gcnbatch.selection.campaign import Campaign
    from gcnbatch.selection.choice import Criteria, Selected


@arguments(SelectOptions)
def select(given: SelectOptions) -> Selected:
    """Choose molecules of a pool to measure next, and write them as a table. Memory stays bounded.

    A run's outputs are named like its tasks; ``run.task`` names one of several runs.

    Returns
    -------
    Selected
        The molecules in the order of their rank, and how many were left out by what.

    Raises
    ------
    InputError
        When runs, pool, options and output cannot be used or do not match, and when no molecule is left.

    Examples
    --------
    >>> import gcnbatch
    >>> smiles = ["CCO", "c1ccccc1", "CC#N", "CCN", "CCCC", "CCCO"] * 4
    >>> graphs = gcnbatch.from_smiles(smiles, [0.2, 1.9, -0.3, 0.1, 0.9, 0.4] * 4)
    >>> gcnbatch.write("molecules.h5", graphs, smiles=smiles)
    >>> run = gcnbatch.train(data="molecules.h5", epochs=1, settings={"model.widths": [4]}, ensemble=2, out="run")
    >>> chosen = gcnbatch.select(run, ["CCCCO", "CCO", "c1ccccc1O"], n=2, where="MW > 80")
    >>> chosen.columns["smiles"].tolist(), chosen.left_out["measured already"]
    (['c1ccccc1O'], 1)
    """
    from gcnbatch.selection import choice, output

    folders = folders_of(given.runs)
    with predicting(given, given.data, takes_smiles=True) as (data, common):
        reads = [*folders, *([data] if isinstance(data, Path) else [])]
        target = None if given.out is None else output.check(given.out, reads)
        chosen = choice.select(folders, data, criteria(given), **common)
    if given.out is not None:
        output.write(target, chosen.columns, given.spreadsheet)
    return chosen


@arguments(CampaignOptions)
def campaign(given: CampaignOptions) -> Campaign:
    r"""Replay a campaign on a table of measured molecules: how much of the best 5 % each round has found.

    It begins with 4 % of the rows, which represent the others. Each round fits a model to what is known, and measures
    the next batch: by default the kernel of the recipe ``best`` as a Gaussian process; with ``recipe``, a whole run.
    Beside it stand the same number of rows at random, and those that a random forest predicts best.

    Raises
    ------
    InputError
        When the table has no column of measured numbers, or too few rows.

    Examples
    --------
    >>> from pathlib import Path
    >>> import gcnbatch
    >>> rows = "".join(f"{'C' * length}{end},{length}\n" for length in range(1, 30) for end in ("O", "N"))
    >>> Path("measured.csv").write_text(f"smiles,y\n{rows}") > 0
    True
    >>> found = gcnbatch.campaign("measured.csv", rounds=2, diversity=1.0, out="campaign")
    >>> found.columns["measured"].tolist()
    ['2', '7', '12']
    """
    from gcnbatch.folders import results
    from gcnbatch.selection import campaign as campaigns

    place = shipped_config(given.recipe or RECIPE)
    chosen: Options = {("backend",): given.backend, ("device",): given.device, ("cuda", "resident"): given.resident}
    config = load(place, chosen, given.settings or {})
    task = given.maximise or given.minimise
    with results(optional_path(given.out), "campaign", whole=True) as (folder, _):
        data = folder / campaigns.DATA
        about: dict[str, Any] = {
            "smiles_column": given.smiles_column,
            "id_column": given.id_column,
            "delimiter": given.delimiter,
            "encoding": given.encoding,
            "processes": given.processes,
            "target_columns": [task] if task else None,
        }
        options = ImportSmilesOptions(
            given.table, data, **about, **config.molecules.model_dump(), on_bad_row="skip", progress=not given.quiet
        )
        try:
            summary = import_table(options)
        except InputError as error:
            error.rename("--target-columns", "--maximise or --minimise")
            raise
        for line in (*summary.roles(), *summary.said()):
            given.say(line)
        return campaigns.replay(
            folder, criteria(given), given.n, given.rounds, config if given.recipe else None, given.quiet, given.say
        )


def criteria(given: AcquisitionOptions) -> Criteria:
    """Return what to choose."""
    from gcnbatch.selection.choice import Criteria

    names = ("by", "maximise", "minimise", "below", "above", "where", "diversity", "deviations", "seed")
    chosen = {name: getattr(given, name) for name in names if hasattr(given, name)}
    return Criteria(**chosen) if given.n is None else Criteria(given.n, **chosen)
