"""The mixture: the weighted mean of its members' outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.errors import InputError
from gcnbatch.mixture.members import KERNEL, TREES, Members
from gcnbatch.mixture.molecules import Molecules
from gcnbatch.mixture.normal_scores import Arrays
from gcnbatch.mixture.problem import Float64, Problem
from gcnbatch.mixture.store import join, split
from gcnbatch.mixture.weights import find_weights


class Share(NamedTuple):
    """A row of the table of members: the out-of-fold error alone, and the weight in each task (T,)."""

    member: str
    error: float | None
    weights: Float64


@dataclass(frozen=True)
class Mixture:
    """Fitted members and their weights.

    The mean of regressions is taken on the transformed scale.

    Parameters
    ----------
    members : Members
    names : tuple of str
        All members in the order of weights: the kernel, the trees, then further ones such as a network.
    weights : float64, (M, T)
        Not negative; each column has the sum 1.
    """

    members: Members
    names: tuple[str, ...]
    weights: Float64

    def predict(self, molecules: Molecules, further: Mapping[str, Float64] | None = None, jobs: int = 1) -> Float64:
        """Return outputs (n, K): values in the user's units, or probabilities.

        Parameters
        ----------
        molecules : Molecules
        further : mapping
            Outputs (n, K) of each further member that has a weight.
        jobs : int
            Threads.
        """
        return self.combine({**self.members.predict(molecules, jobs), **(further or {})})

    def combine(self, outputs: Mapping[str, NDArray[Any]]) -> Float64:
        """Return the mixture (n, K) of the members' outputs (n, K).

        Where a member has no finite output, the others' weights grow; NaN where none has one.

        Raises
        ------
        InputError
            When a member that has a weight is missing.
        """
        total: Any = 0.0
        share: Any = 0.0
        for name, weight in zip(self.names, self.weights, strict=True):
            if not weight.any():
                continue
            if name not in outputs:
                raise InputError("members of the mixture", f"no outputs of {name}", ", ".join(self.names))
            scaled = self.members.transforms.apply(np.asarray(outputs[name], np.float64))
            known = np.isfinite(scaled) & (weight > 0)
            total = total + np.where(known, weight * scaled, 0)
            share = share + np.where(known, weight, 0)
        with np.errstate(invalid="ignore"):  # 0 / 0
            return self.members.transforms.invert(total / share)

    def arrays(self) -> Arrays:
        """Return all arrays by their names; with `metadata`, `from_arrays` makes the mixture of them."""
        return {"weights": self.weights, **join({"members": self.members.arrays()})}

    @property
    def metadata(self) -> dict[str, Any]:
        """What `from_arrays` needs beside arrays, for JSON."""
        return {"target": self.members.target, "members": list(self.names)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> Mixture:
        """Return the object that `arrays` was called on."""
        own = split({key: array for key, array in arrays.items() if key != "weights"})
        members = Members.from_arrays(own["members"], metadata["target"])
        return cls(members, tuple(metadata["members"]), arrays["weights"])


class Mixed(NamedTuple):
    """A mixture, its table of members, and its own out-of-fold outputs (n, K)."""

    mixture: Mixture
    table: list[Share]
    left_out: Float64


def mix(
    problem: Problem, members: Members, left_out: Mapping[str, Float64], further: Mapping[str, Float64] | None = None
) -> Mixed:
    """Return the mixture of fitted members, with weights from out-of-fold outputs.

    Parameters
    ----------
    left_out : mapping
        Out-of-fold outputs (n, K) of these members, as `fit_members` returns them.
    further : mapping
        Those of further members, in the user's units or probabilities. They must be made with the parts of `problem`.

    Raises
    ------
    InputError
        When outputs have another shape than the targets.
    """
    outputs = {**left_out, **{name: np.asarray(of, np.float64) for name, of in (further or {}).items()}}
    for name, of in outputs.items():
        if of.shape != problem.values.shape:
            raise InputError(f"out-of-fold outputs of {name}", f"shape {of.shape}", f"{problem.values.shape}")
    scaled = np.stack([members.transforms.apply(of) for of in outputs.values()])
    targets = members.transforms.apply(problem.values)
    shape = (len(targets), len(problem.tasks), -1)
    weights = find_weights(targets.reshape(shape), scaled.reshape(len(outputs), *shape))
    of_name = dict(zip(outputs, weights, strict=True))
    kept = replace(
        members,
        kernel=members.kernel if of_name[KERNEL].any() else None,
        trees=members.trees if of_name[TREES].any() else None,
    )
    mixture = Mixture(kept, tuple(outputs), weights)
    table = [Share(name, problem.whole_error(of), of_name[name]) for name, of in outputs.items()]
    return Mixed(mixture, table, mixture.combine(outputs))
