"""Parameters of ``select``: a selection, and the replay of a campaign."""

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Annotated

from gcnbatch.fileio import StrPath
from gcnbatch.options.declaration import Python, declaration, option
from gcnbatch.options.prediction import PredictingOptions, Runs


@declaration
class AcquisitionOptions(PredictingOptions):
    """Parameters that a selection and a campaign share."""

    _: KW_ONLY
    out: StrPath | None = option(
        ".csv or .parquet file; of a campaign, a folder.",
        "-o",
        "--out",
        default=None,
        metavar="OUT",
        typed=str,
        shown="CSV on stdout; runs/campaign-<time>",
        doc="A .csv or .parquet file, None: none; of a campaign, a folder, None: ``runs/campaign-<time>``.",
    )
    n: int | None = option(
        "Molecules of a batch.", default=None, min=1, metavar="N", shown="96; in a campaign, to end at a fifth"
    )
    by: str = option(
        "expected-improvement, upper-bound, thompson, uncertainty or greedy.",
        default="",
        metavar="RULE",
        shown="expected-improvement; greedy for probabilities",
    )
    maximise: str = option("Task to maximise.", default="", metavar="TASK", shown="the only one")
    minimise: str = option("Task to minimise.", default="", metavar="TASK", shown="none")
    diversity: float = option(
        "Largest Tanimoto similarity of two molecules of a batch.", default=0.9, min=0.0, max=1.0, metavar="T"
    )
    deviations: float = option("Deviations that upper-bound adds.", default=1.0, min=0.0, metavar="K")
    seed: int = option("Seed of thompson's draws and of a campaign's start.", default=0, min=0, max=2**63 - 1)


@declaration
class SelectOptions(AcquisitionOptions):
    """``gcnbatch select``."""

    runs: Runs
    data: Annotated[
        "StrPath | Sequence[str]",
        Python('The pool: a file or folder of molecules, SMILES, or ``"-"``: standard input.'),
    ]
    _: KW_ONLY
    below: Sequence[str] = option(
        "Task that must stay below X; may be given several times.",
        default=(),
        metavar="TASK=X",
        shown="none",
        typed=list[str],
    )
    above: Sequence[str] = option(
        "Task that must stay above X; may be given several times.",
        default=(),
        metavar="TASK=X",
        shown="none",
        typed=list[str],
    )
    where: str = option(
        'Condition on columns of POOL and RDKit\'s descriptors, such as "MW < 500 and vendor = A".',
        default="",
        metavar="CONDITION",
        shown="none",
    )


@declaration
class CampaignOptions(AcquisitionOptions):
    """``gcnbatch select --campaign``."""

    table: Annotated[StrPath, Python("Table of measured molecules.")]
    _: KW_ONLY
    rounds: int = option("Campaign: batches that are measured.", default=20, min=1, metavar="N")
    recipe: str = option(
        "Campaign: recipe to train in each round.", default="", shown="its kernel alone, as a Gaussian process"
    )


@declaration
class SelectCommandOptions(SelectOptions, CampaignOptions):
    """All options of the command."""
