"""scikit-learn estimators: SMILES or RDKit molecules in, labels, probabilities or values out.

They work in `Pipeline`, `GridSearchCV`, `cross_val_score` and with joblib. An estimator is one network; with
``recipe="best"`` it is what ``gcnbatch train TABLE`` trains, ten networks mixed with a kernel and trees. A fitted one
holds its weights as the bytes of safetensors files, so that a pickle of it holds numbers and texts alone. Unpickle your
own files only: any pickle can run code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, check_is_fitted, check_random_state, column_or_1d

from gcnbatch.api.datasets import from_smiles
from gcnbatch.api.options import load
from gcnbatch.api.run import Run
from gcnbatch.api.sources import write_set
from gcnbatch.config import Config
from gcnbatch.config_tree import plain, put, read_toml
from gcnbatch.data.featurizer import load_rdkit
from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.schema import Target
from gcnbatch.errors import InputError
from gcnbatch.inference.ensemble import predict
from gcnbatch.inference.models import load_wholes
from gcnbatch.resources import shipped_config
from gcnbatch.training import fits, run
from gcnbatch.training.fit_files import BEST
from gcnbatch.training.mixed import FILE
from gcnbatch.training.reports import METRICS, Report, ReportWriter
from gcnbatch.training.summary import draw_curves

# Arguments by the section of the configuration that they are keys of.
_KEYS = {
    "model": ("widths", "dense", "head", "readout", "dropout", "batch_norm"),
    "train": ("epochs", "batch_size", "learning_rate", "weight_decay", "schedule", "patience"),
    "split": ("validation_fraction",),
    "molecules": ("bond_channels",),
}


class InvalidMolecules(InputError, ValueError):
    """Input that is wrong for an estimator; scikit-learn expects a ValueError."""


@dataclass(kw_only=True, repr=False, eq=False)
class GcnEstimator(BaseEstimator):  # type: ignore[misc]
    """What `GcnClassifier` and `GcnRegressor` share.

    Parameters
    ----------
    widths : sequence of int
        Output features of each graph convolution.
    dense, head : sequence of int
        Widths of dense layers per atom before the readout, and per molecule after it.
    readout : {"sum", "mean", "max"}
        Atoms to molecule.
    dropout : float
    batch_norm : bool
    epochs, batch_size : int
    learning_rate, weight_decay : float
    schedule : {"constant", "step", "cosine", "plateau"}
        Learning rate over the epochs.
    patience : int
        Stop after this many epochs without a better validation value; 0: never.
    validation_fraction : float
        Share of the training rows that picks the best epoch; 0: the last epoch is taken.
    bond_channels : bool
        One adjacency per bond type.
    backend : str
        What computes; ``"auto"``: the fastest that can start.
    device : int
        GPU.
    processes : int
        Processes that read SMILES; 0: one per processor.
    recipe : str
        Name of a shipped configuration, such as ``"best"``. It is trained in place of one network; of the arguments
        above, those that are not at their defaults win over its keys. Empty: one network.
    random_state : int, RandomState or None
        Seed of weights, shuffles, dropout and validation rows; an int is the key `seed` of a run.
    settings : mapping
        Further keys of the configuration, ``{"train.clip_norm": 1.0}``; they win over the arguments.

    Attributes
    ----------
    model_ : bytes or dict of bytes
        The weights and their description: what ``best.safetensors`` of a run holds; of a cross-fitted recipe, the files
        of the run that predict, by name.
    history_ : list of dict
        A row per epoch: losses, validation value, learning rate; of several networks, also the key ``member``.
    n_iter_ : int
        Epochs that were trained; of several networks, the most.
    multitask_ : bool
        Whether `y` had two dimensions.

    Raises
    ------
    InvalidMolecules
        For molecules that give no graph, with their row, and for targets and parameters that do not fit; a ValueError.
    """

    widths: Sequence[int] = (64, 64)
    dense: Sequence[int] = ()
    head: Sequence[int] = ()
    readout: Literal["sum", "mean", "max"] = "sum"
    dropout: float = 0.0
    batch_norm: bool = True
    epochs: int = 50
    batch_size: int = 50
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    schedule: Literal["constant", "step", "cosine", "plateau"] = "constant"
    patience: int = 0
    validation_fraction: float = 0.1
    bond_channels: bool = True
    backend: str = "auto"
    device: int = 0
    processes: int = 0
    recipe: str = ""
    random_state: Any = 0
    settings: Mapping[str, Any] | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, True, False
        tags.target_tags.multi_output = True
        tags.non_deterministic = False
        return tags

    def _config(self, split: str) -> Any:
        settings = {} if self.settings is None else self.settings
        if not isinstance(settings, Mapping):
            raise InvalidMolecules("settings", type(settings).__name__, "a mapping of keys")
        tree = read_toml(shipped_config(self.recipe)) if self.recipe else {}
        tree |= {"name": "sklearn", "seed": self._seed(), "backend": self.backend, "device": self.device}
        tree["data"] = {"path": "memory"}
        for key, value in (("kind", split), ("test", 0.0)):
            put(tree, ("split", key), value)
        for section, names in _KEYS.items():
            for name in names:
                value, key = getattr(self, name), "valid" if section == "split" else name
                if not (self.recipe and _listed(value) == _listed(getattr(GcnEstimator, name))):
                    put(tree, (section, key), _listed(value))
        return load(tree, {}, settings)

    def _seed(self) -> int:
        given = self.random_state
        return int(given if isinstance(given, Integral) else check_random_state(given).randint(2**31 - 1))

    def _graphs(self, X: Any, y: NDArray[Any] | None = None, molecules: Any = None, **about: Any) -> GraphSet:
        """Return molecules and targets as a data set; `molecules` is that section of the configuration."""
        return from_smiles(_smiles(X), y, **molecules.model_dump(), processes=self._processes(), **about)

    def _processes(self) -> int:
        found = plain(self.processes)
        if type(found) is not int or found < 0:
            raise InvalidMolecules("processes", repr(found), "a whole number, 0 or more")
        return found

    def _fit(
        self,
        X: Any,
        y: NDArray[Any],
        task: Target,
        split: str = "random",
        classes: NDArray[Any] | None = None,
        sample_weight: ArrayLike | None = None,
        **about: Any,
    ) -> Self:
        """Train, then set the attributes: a fit that fails leaves those of the fit before."""
        try:
            config = self._config(split)
            graphs = self._graphs(X, y, config.molecules, task=task, **about)
            if graphs.n_graphs < 2:
                raise InvalidMolecules("X", "n_samples = 1", "at least 2 molecules")
            if sample_weight is not None:
                weights = _weights(sample_weight, graphs.n_graphs).astype(np.float32)
                graphs = replace(graphs, sample_weight=weights)
            model, history = (_fit_run if config.split.cross_fit else fits.fit_in_memory)(config, graphs)
        except InputError as error:
            raise _explained(error) from error
        if classes is not None:
            self.classes_ = classes
        self.n_iter_ = max(row["epoch"] for row in history)
        self.model_, self.history_, self.multitask_ = model, history, y.ndim == 2
        return self

    def _outputs(self, X: Any) -> NDArray[np.floating]:
        """Return probabilities or values, (n, K)."""
        check_is_fitted(self)
        with TemporaryDirectory(prefix="gcnbatch-") as folder:
            files = self.model_ if isinstance(self.model_, dict) else {BEST: self.model_}
            for name, content in files.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            try:
                config = load({"backend": self.backend, "device": self.device, "data": {"path": "memory"}}, {}, {})
                about: dict[str, Any] = {"backend": config.backend, "device": config.device, "level": None}
                found = predict([Path(folder)], self._rows(X), self._processes(), on_bad_row="fail", **about)
            except InputError as error:
                raise _explained(error) from error
        return found.outputs

    def _labelled(self, y: Any, found: NDArray[Any]) -> NDArray[Any]:
        """Return the targets of predictions to score, which must be of as many tasks as those of the fit."""
        targets = _targets(y)
        if (targets.ndim == 2) is not self.multitask_:
            expected = "several tasks, (n, K)" if self.multitask_ else "one task, (n,)"
            raise InvalidMolecules("y", f"shape {targets.shape}", f"{expected}, as in fit")
        if len(targets) != len(found):
            raise InvalidMolecules("y", f"{len(targets)} rows", f"{len(found)}, one per molecule")
        if targets.shape != found.shape:
            raise InvalidMolecules("y", f"shape {targets.shape}", f"{found.shape}, as in fit")
        return targets

    def _rows(self, X: Any) -> list[str] | GraphSet:
        """Return what `predict` takes."""
        return _smiles(X)


class _WithoutFigures(ReportWriter):
    """Writes the reports of a run whose folder is thrown away."""

    def write(self, report: Report) -> dict[str, Any]:
        return replace(report, has_figures=False).write()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return None if function is draw_curves else function(*arguments)


def _fit_run(config: Config, graphs: GraphSet) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """Train a cross-fitted run; return its files that predict by name, and the rows of its histories.

    Warns
    -----
    UserWarning
        As `fits.fit_in_memory`.
    """
    with TemporaryDirectory(prefix="gcnbatch-") as folder:
        place, _ = run.start(config, Path(folder, "run"), True, writer=_WithoutFigures(), make=write_set(graphs))
        fits.warn_of_left_out(graphs.header, load_wholes([place], lambda line: None)[0].left_out)
        paths = [path for name in (BEST, FILE, METRICS) for path in sorted(place.rglob(name))]
        return {path.relative_to(place).as_posix(): path.read_bytes() for path in paths}, Run(place).history


class GcnClassifier(ClassifierMixin, GcnEstimator):  # type: ignore[misc]
    """Graph convolutional network that classifies molecules.

    The parameters are those of `GcnEstimator`.

    ``y`` of shape (n,) has two or more classes. ``y`` of shape (n, K) has K binary tasks, 0 or 1, NaN or None where
    missing; ``predict_proba`` then returns the probability of 1 by task, (n, K).

    Attributes
    ----------
    classes_ : array
        The labels of the classes; for several tasks ``[0, 1]``.

    Examples
    --------
    >>> smiles = ["CCO", "CCN", "CCC", "c1ccccc1", "Cc1ccccc1", "c1ccncc1"] * 4
    >>> aromatic = ["no", "no", "no", "yes", "yes", "yes"] * 4
    >>> model = GcnClassifier(widths=[8], readout="mean", epochs=30, learning_rate=0.01).fit(smiles, aromatic)
    >>> model.predict(["CCCO", "Oc1ccccc1"]).tolist()
    ['no', 'yes']
    >>> model.predict_proba(["CCCO"]).shape
    (1, 2)
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on molecules and their labels.

        Parameters
        ----------
        X : array-like of str or RDKit molecules, (n,) or (n, 1)
        y : array-like, (n,) or (n, K)
        sample_weight : array-like, (n,)
            Weight of each molecule in the loss, not negative.
        """
        labels = _targets(y)
        if labels.ndim == 2:
            return self._fit(X, labels, "binary", classes=np.array([0, 1]), sample_weight=sample_weight)
        check_classification_targets(labels)
        try:
            classes, codes = np.unique(labels, return_inverse=True)
        except TypeError as error:
            raise InvalidMolecules("y", str(error), "labels of one type") from error
        if len(classes) < 2:
            raise InvalidMolecules("y", "only one class", "at least 2 classes")
        if len(classes) == 2:
            return self._fit(X, codes, "binary", "stratified", classes, sample_weight)
        names = list(map(str, range(len(classes))))
        return self._fit(X, codes, "multiclass", "stratified", classes, sample_weight, class_names=names)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of each class, (n, C); of several tasks the probability of 1, (n, K)."""
        outputs = self._outputs(X).astype(np.float64)
        if not self.multitask_ and len(self.classes_) == 2:
            return np.hstack([1 - outputs, outputs])
        return outputs if self.multitask_ else outputs / outputs.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class, (n,); of several tasks 0 or 1, (n, K), NaN where training left a task out."""
        found = self.predict_proba(X)
        if not self.multitask_:
            return self.classes_[found.argmax(axis=1)]
        labels = (found >= 0.5).astype(np.int64)
        return np.where(np.isnan(found), np.nan, labels) if np.isnan(found).any() else labels

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy; of several tasks that of all labelled entries."""
        found = self.predict(X)
        labels = self._labelled(y, found)
        if labels.ndim == 1:
            try:
                return float(accuracy_score(labels, found, sample_weight=sample_weight))
            except TypeError as error:
                raise InvalidMolecules("y", str(error), "labels of one type, as in fit") from error
        known = ~np.isnan(labels) & ~np.isnan(found)
        weights = np.broadcast_to(_weights(sample_weight, len(found))[:, None], known.shape)
        return float(np.average((found == labels)[known], weights=weights[known]))


class GcnRegressor(RegressorMixin, GcnEstimator):  # type: ignore[misc]
    """Graph convolutional network that predicts numbers for molecules.

    The parameters are those of `GcnEstimator`. ``y`` has shape (n,), or (n, K) for K tasks with NaN or None where
    missing.

    Examples
    --------
    >>> smiles = ["C", "CC", "CCC", "CCCC", "CCCCC", "CCCCCC"] * 4
    >>> model = GcnRegressor(widths=[8], epochs=40, learning_rate=0.01).fit(smiles, [1, 2, 3, 4, 5, 6] * 4)
    >>> bool(model.score(smiles, [1, 2, 3, 4, 5, 6] * 4) > 0.5)
    True
    """

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train on molecules and their values.

        Parameters
        ----------
        X : array-like of str or RDKit molecules, (n,) or (n, 1)
        y : array-like of numbers, (n,) or (n, K)
        sample_weight : array-like, (n,)
            Weight of each molecule in the loss, not negative.
        """
        values = _targets(y)
        if values.ndim == 1:
            values = _finite(values)
        return self._fit(X, values, "regression", sample_weight=sample_weight)

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the values, (n,) or (n, K)."""
        found = self._outputs(X).astype(np.float64)
        return found if self.multitask_ else found[:, 0]

    def score(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return R²; of several tasks the mean over the tasks, each of its labelled rows."""
        found = self.predict(X)
        values = self._labelled(y, found)
        if values.ndim == 1:
            return float(r2_score(_finite(values), found, sample_weight=sample_weight))
        known, weights = ~np.isnan(values) & ~np.isnan(found), _weights(sample_weight, len(found))
        pairs = ((values[on, k], found[on, k], weights[on]) for k, on in enumerate(known.T) if on.any())
        return float(np.mean([r2_score(*pair, sample_weight=weight) for *pair, weight in pairs]))


def _smiles(X: Any) -> list[str]:
    """Return the SMILES of texts or RDKit molecules, (n,) or (n, 1).

    Raises
    ------
    InvalidMolecules
        For other types and shapes.
    """
    if isinstance(X, str):
        raise InvalidMolecules("X", "a single text", "a list of SMILES")
    if not isinstance(X, Iterable) or isinstance(X, Mapping):
        raise InvalidMolecules("X", type(X).__name__, "a list of SMILES")
    shape: tuple[int, ...] = getattr(X, "shape", ())
    if len(shape) > 2 or (len(shape) == 2 and shape[1] != 1):
        raise InvalidMolecules("X", f"shape {shape}", "(n,) or (n, 1): a molecule per row")
    try:
        every = np.asarray(X).ravel().tolist() if len(shape) == 2 else list(X)
    except TypeError as error:  # an array without dimensions
        raise InvalidMolecules("X", str(error), "a list of SMILES") from error
    if not every:
        raise InvalidMolecules("X", "0 samples", "a minimum of 1 is required")
    return [_text(one, row) for row, one in enumerate(every)]


def _text(molecule: Any, row: int) -> str:
    if isinstance(molecule, str):
        return molecule
    chem = load_rdkit()
    if not isinstance(molecule, chem.Mol):
        raise InvalidMolecules(f"X, row {row + 1}", type(molecule).__name__, "a SMILES or an RDKit molecule")
    return str(chem.MolToSmiles(molecule))


def _targets(y: Any) -> NDArray[Any]:
    """Return one target as it is, (n,), or several as numbers with NaN where missing, (n, K)."""
    if y is None:
        raise InvalidMolecules("y", "requires y to be passed, but the target y is None")
    found = np.asarray(y)
    if found.ndim != 2 or found.shape[1] == 1:
        single = column_or_1d(found, warn=True)
        if single.dtype.kind == "f":
            assert_all_finite(single, input_name="y")
        return single
    return _numbers(found, "numbers, NaN or None where missing")


def _numbers(values: NDArray[Any], expected: str) -> NDArray[np.float64]:
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidMolecules("y", str(error), expected) from error


def _finite(values: NDArray[Any]) -> NDArray[np.float64]:
    numbers = _numbers(values, "numbers")
    assert_all_finite(numbers, input_name="y")
    return numbers


def _listed(value: Any) -> Any:
    """Return a value as the configuration has it: widths of layers as a list."""
    found = plain(value)
    return list(found) if isinstance(found, Iterable) and not isinstance(found, str) else found


def _weights(given: Any, rows: int) -> NDArray[np.float64]:
    """Return the weight of each row, (n,); 1 where none is given."""
    if given is None:
        return np.ones(rows)
    weights = _finite(column_or_1d(given))
    if len(weights) != rows:
        raise InvalidMolecules("sample_weight", f"{len(weights)} rows", f"{rows}, one per molecule")
    return weights


def _explained(error: InputError) -> InvalidMolecules:
    return InvalidMolecules(error.subject, error.got, error.expected, error.hint)
