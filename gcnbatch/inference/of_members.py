"""What the members of a mixture beside the networks give: computed where molecules are read, or by the backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends.base import Backend, Forest, MixtureOps, Nodes, Similarity
from gcnbatch.mixture import Members, Molecules, Prepared
from gcnbatch.mixture.forest import Forest as HostForest
from gcnbatch.mixture.forest import ordered
from gcnbatch.mixture.kernel import KernelRidge
from gcnbatch.mixture.members import KERNEL, TREES
from gcnbatch.mixture.trees import Trees
from gcnbatch.training import mixed


class OfMembers(NamedTuple):
    """What they give for M molecules, or what they read.

    Parameters
    ----------
    outputs : dict of (M, K)
        By the name of the member.
    prepared : Prepared or None
        What they read, where the backend computes the outputs.
    """

    outputs: dict[str, NDArray[np.float64]]
    prepared: Prepared | None = None

    @classmethod
    def joined(cls, parts: Sequence[OfMembers | None]) -> OfMembers | None:
        """Return those of all parts, one after the other; None of parts without a mixture."""
        known = [of for of in parts if of is not None]
        if not known:
            return None
        outputs = {name: np.concatenate([of.outputs[name] for of in known]) for name in known[0].outputs}
        return cls(outputs, Prepared.joined([of.prepared for of in known if of.prepared is not None]))


@dataclass(frozen=True)
class Reading:
    """What processes that read molecules do for the members.

    Parameters
    ----------
    members : Members
    prepares : bool
        Only prepare what they read.
    """

    members: Members
    prepares: bool

    def of(self, molecules: Molecules) -> OfMembers:
        """Return what they give for molecules, or what they read."""
        if self.prepares:
            return OfMembers({}, self.members.preparation.apply(molecules))
        return OfMembers(self.members.predict(molecules))


@dataclass(frozen=True)
class OnBackend:
    """The members on a backend; only the thread that uses the backend calls.

    Parameters
    ----------
    members : Members
    kernel : tuple or None
        The kernel, and similarities to its landmarks.
    trees : tuple or None
        The trees, and their forests.
    """

    members: Members
    kernel: tuple[KernelRidge, Similarity] | None
    trees: tuple[Trees, list[Forest]] | None

    @classmethod
    def of(cls, members: Members, backend: Backend) -> OnBackend | None:
        """Return members on a backend; None if it leaves them to the host."""
        if (ops := backend.mixture_ops()) is None:
            return None
        kernel, trees = members.kernel, members.trees
        return cls(
            members,
            None if kernel is None else (kernel, ops.similarity(mixed.compared(kernel.landmarks), kernel.weight)),
            None if trees is None else (trees, [_on_backend(ops, forest) for _, forest in trees.forests]),
        )

    def predict(self, of: Prepared | Molecules) -> OfMembers:
        """Return what the members give for molecules."""
        prepared = self.members.preparation.apply(of) if isinstance(of, Molecules) else of
        outputs = {}
        if self.kernel is not None:
            kernel, similarity = self.kernel
            regressions = similarity.products(mixed.compared(prepared), kernel.weights) + kernel.intercept
            outputs[KERNEL] = self.members.outputs_of_kernel(regressions)
        if self.trees is not None:
            trees, forests = self.trees
            x = ordered(self.members.preparation.table(prepared))
            found = np.full((len(x), trees.outputs), np.nan)
            for (columns, _), forest in zip(trees.forests, forests, strict=True):
                found[:, columns] = forest.means(x)
            outputs[TREES] = self.members.transforms.invert(found)
        return OfMembers(outputs)


def _on_backend(ops: MixtureOps, forest: HostForest) -> Forest:
    nodes, leaves = forest.packed
    return ops.forest(Nodes(nodes, leaves.astype(np.int32), forest.roots.astype(np.int32), forest.values))
