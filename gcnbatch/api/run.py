"""A run folder from Python: its figures, its history, its predictions."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gcnbatch.config import Config
    from gcnbatch.explanation.attributions import Attributions
    from gcnbatch.fileio import StrPath
    from gcnbatch.inference.trust import Level
    from gcnbatch.options.sources import DataLike
    from gcnbatch.predictions import Predictions
    from gcnbatch.selection.choice import Selected


@dataclass(frozen=True)
class Run:
    """A run: a trained model, or the models of folds, repeats and an ensemble.

    Parameters
    ----------
    folder : Path
        Its folder. Nothing is kept in memory: every property reads a file of it.

    Examples
    --------
    >>> import gcnbatch
    >>> run = gcnbatch.train(epochs=1, settings={"model.widths": [4]}, out="quickstart", folds=2)
    >>> run = gcnbatch.Run.load("quickstart")
    >>> sorted(run.metrics["mean"]["test"]) == sorted(run.metrics["std"]["test"])
    True
    >>> [member.folder.name for member in run.members]
    ['fold1', 'fold2']
    >>> [(row["member"], row["epoch"]) for row in run.history]
    [('fold1', 1), ('fold2', 1)]
    """

    folder: Path

    @classmethod
    def load(cls, folder: StrPath) -> Run:
        """Return the run in a folder.

        Raises
        ------
        InputError
            When it is not the folder of a run, or has symbolic links.
        """
        from gcnbatch.training import run_files
        from gcnbatch.training.reports import METRICS
        from gcnbatch.training.run import refuse_study
        from gcnbatch.training.run_files import CONFIG

        place = Path(folder)
        refuse_study(place)
        if not (place / CONFIG).is_file() and not (place / METRICS).is_file():
            expected = f"a folder with {CONFIG} or {METRICS}"
            raise InputError(str(place), "not a run folder", expected, "Start with gcnbatch.train.")
        run_files.refuse_links(place)
        return cls(place)

    @property
    def metrics(self) -> dict[str, Any]:
        """The content of ``metrics.json``: figures of the training, validation and test rows, and of the training.

        Raises
        ------
        InputError
            When the run is not finished, or the file is damaged.
        """
        from gcnbatch.training import run_files
        from gcnbatch.training.reports import METRICS

        return run_files.read_figures(self.folder / METRICS)

    @property
    def history(self) -> list[dict[str, Any]]:
        """A row per epoch: losses, learning rate, seconds; with several models, also the key ``member``.

        A random forest has none.
        """
        from gcnbatch.training import run_files
        from gcnbatch.training.fit_files import HISTORY

        if members := self.members:
            rows = ((member.folder.name, row) for member in members for row in member.history)
            return [row | {"member": "/".join(filter(None, (name, row.get("member"))))} for name, row in rows]
        if not (self.folder / HISTORY).exists():
            return []
        epochs = self.metrics.get("epochs", 0)
        return run_files.read_history(self.folder / HISTORY, epochs)

    @property
    def config(self) -> Config:
        """The resolved configuration: every key with its value.

        Raises
        ------
        InputError
            When the run has none, as a member of a run or a random forest.
        """
        from gcnbatch.config import resolve
        from gcnbatch.training import run_files
        from gcnbatch.training.run_files import CONFIG

        path = self.folder / CONFIG
        return resolve(run_files.read_toml(path), where=str(path))

    @property
    def members(self) -> list[Run]:
        """The models of folds, repeats and an ensemble, in order; none for a single model."""
        from gcnbatch.training.plan import member_folders

        return [Run(folder) for folder in member_folders(self.folder)]

    def predict(
        self,
        data: DataLike | Iterable[str],
        *,
        backend: str = "auto",
        device: int = 0,
        batch_size: int | None = None,
        level: Level = "training",
        applicability: bool = False,
        processes: int = 0,
    ) -> Predictions:
        """Return predictions, the mean over the run's models.

        Parameters
        ----------
        data : iterable of str, str, path or GraphSet
            SMILES, or one of them; a data set or file of molecules, as for the command ``infer``; graphs in memory.
        backend, device
            Backend and GPU. ``"auto"`` predicts few SMILES on the CPU.
        batch_size : int
            Graphs per batch; None: chosen by the backend. It does not change the predictions.
        level : float, "training" or None
            Level of conformal intervals and sets; None: predictions alone, without calibration.
        applicability : bool
            Add similarity and embedding distance to the nearest training molecule.
        processes : int
            Processes that read SMILES; 0: one per processor.

        Returns
        -------
        Predictions
            ``.outputs``, (R, K), are float32 probabilities, or float64 values in the targets' unit; NaN in a task that
            training left out. A molecule that cannot be read has NaN there and a reason in ``.errors``.
            ``.columns()`` gives all columns by name, as for a pandas DataFrame. Device arrays come back as NumPy
            arrays.

        Raises
        ------
        InputError
            When the data do not fit the run, or it has no model, as a random forest.

        Examples
        --------
        >>> import gcnbatch
        >>> graphs = gcnbatch.from_smiles(["CCO", "c1ccccc1", "CC#N", "CCN"] * 4, [0.2, 1.9, -0.3, 0.1] * 4)
        >>> run = gcnbatch.train(data=graphs, epochs=2, settings={"model.widths": [4]}, out="run")
        >>> found = run.predict(["CCCO", "no molecule"])
        >>> found.outputs.shape, found.outputs.dtype.name
        ((2, 1), 'float64')
        >>> list(found.columns())[:2], str(found.errors[1])
        (['id', 'task0'], 'a blank inside the SMILES')
        """
        from gcnbatch.inference.ensemble import predict

        return predict(
            [self.folder],
            data,
            processes,
            backend=backend,
            device=device,
            batch_size=batch_size,
            level=level,
            applicability=applicability,
        )

    def select(
        self,
        pool: StrPath | Iterable[str],
        n: int = 96,
        *,
        by: str = "",
        maximise: str = "",
        minimise: str = "",
        where: str = "",
        diversity: float = 0.9,
        backend: str = "auto",
        device: int = 0,
        processes: int = 0,
    ) -> Selected:
        """Return the molecules of a pool to measure next; see `gcnbatch.select`, which also takes several runs.

        Parameters
        ----------
        pool : iterable of str, str or path
            SMILES, or a file of molecules.
        n : int
            Molecules.
        by, maximise, minimise, where, diversity
            As for `gcnbatch.select`.
        backend, device
            Backend and GPU.
        processes : int
            Processes that read SMILES; 0: one per processor.

        Raises
        ------
        InputError
            When run, pool and options do not match, and when no molecule is left.

        Examples
        --------
        >>> import gcnbatch
        >>> smiles = ["CCO", "c1ccccc1", "CC#N", "CCN"] * 4
        >>> graphs = gcnbatch.from_smiles(smiles, [0.2, 1.9, -0.3, 0.1] * 4)
        >>> gcnbatch.write("molecules.h5", graphs, smiles=smiles)
        >>> run = gcnbatch.train(data="molecules.h5", epochs=1, settings={"model.widths": [4]}, out="run")
        >>> len(run.select(["CCCO", "CCCN", "CCO"], n=1, by="greedy"))
        1
        """
        from gcnbatch.inference.ensemble import as_input
        from gcnbatch.inference.molecules import CsvOptions
        from gcnbatch.selection.choice import Criteria, select

        criteria = Criteria(n, by, maximise, minimise, where=where, diversity=diversity)
        csv = CsvOptions(processes=processes)
        silent: Callable[[str], object] = lambda line: None  # noqa: E731
        return select([self.folder], as_input(pool), criteria, csv, True, silent, backend=backend, device=device)

    def explain(
        self,
        data: DataLike | Iterable[str],
        *,
        tasks: Sequence[str] = (),
        steps: int = 0,
        backend: str = "auto",
        device: int = 0,
        processes: int = 0,
    ) -> Attributions:
        """Return what each atom and bond adds to the predictions: integrated gradients, the mean over the run's models.

        Parameters
        ----------
        data : iterable of str, path or GraphSet
            As for `predict`. Molecules that cannot be read are left out.
        tasks : sequence of str
            Tasks or classes; none: all.
        steps : int
            Positions on the path; 0: as many as the completeness error of a molecule needs.
        backend, device
            Backend and GPU.
        processes : int
            Processes that read SMILES; 0: one per processor.

        Returns
        -------
        Attributions
            ``.atoms`` (N, T) has what each atom of ``.graphs`` adds with half of its bonds, ``.nodes`` what it adds
            alone, ``.edges`` (E, T) each stored edge, ``.joined`` each feature of whole molecules. Atoms and joined
            features add up to ``.outputs - .baselines``, but for ``.errors``.

        Raises
        ------
        InputError
            When the data do not fit the run, or it has no model of graphs.

        Examples
        --------
        >>> import gcnbatch
        >>> graphs = gcnbatch.from_smiles(["CCO", "c1ccccc1", "CC#N", "CCN"] * 4, [0.2, 1.9, -0.3, 0.1] * 4)
        >>> run = gcnbatch.train(data=graphs, epochs=2, settings={"model.widths": [4]}, out="run")
        >>> run.explain(["CCCO"], steps=4).atoms.shape
        (4, 1)
        """
        from gcnbatch.explanation.integrated import attribute

        return attribute(
            [self.folder], data, tasks=tasks, steps=steps, backend=backend, device=device, processes=processes
        )

    def report(self, *, figures: bool = False) -> Path:
        """Write ``report.html`` and ``model_card.md`` again; return the path of the page.

        A model card that was edited is kept. `figures`: also draw the figures of every model.

        Examples
        --------
        >>> import gcnbatch
        >>> run = gcnbatch.train(epochs=1, settings={"model.widths": [4]}, out="quickstart")
        >>> run.report().name
        'report.html'
        """
        from gcnbatch.run_report import files

        return files.write(self.folder, all_figures=figures)


def load(folder: StrPath) -> Run:
    """Return the run in a folder, as `Run.load`; in a notebook, its predictions are a table with drawn molecules.

    Examples
    --------
    >>> import gcnbatch
    >>> graphs = gcnbatch.from_smiles(["CCO", "c1ccccc1", "CC#N", "CCN"] * 4, [0.2, 1.9, -0.3, 0.1] * 4)
    >>> run = gcnbatch.train(data=graphs, epochs=1, settings={"model.widths": [4]}, out="run")
    >>> gcnbatch.load("run").predict("CCO")
    <Predictions: 1 row of task0>
    """
    return Run.load(folder)


def folder_of(run: Run | StrPath) -> Path:
    """Return the folder of a run."""
    return run.folder if isinstance(run, Run) else Path(run)


def folders_of(runs: Run | StrPath | Iterable[Run | StrPath]) -> list[Path]:
    """Return the folders of one run or several."""
    every = [runs] if isinstance(runs, Run | str | os.PathLike) else list(runs)
    return [folder_of(one) for one in every]
