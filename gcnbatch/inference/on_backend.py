"""The members of a mixture beside the networks, on a backend that predicts with them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gcnbatch.backends import mixtures
from gcnbatch.backends.base import Backend
from gcnbatch.mixture import Members, Molecules, Prepared
from gcnbatch.mixture.forest import Forest, ordered
from gcnbatch.mixture.kernel import KernelRidge
from gcnbatch.mixture.members import KERNEL, TREES
from gcnbatch.mixture.trees import Trees
from gcnbatch.training import mixed

_BLOCK = 2048  # molecules at once: what the host prepares for one takes some 20 KB


@dataclass(frozen=True)
class OnBackend:
    """Members on a backend; only the thread that uses the backend calls.

    Parameters
    ----------
    members : Members
    kernel : tuple or None
        The kernel, and similarities to its landmarks.
    trees : tuple or None
        The trees, and their forests.
    """

    members: Members
    kernel: tuple[KernelRidge, mixtures.Similarity] | None
    trees: tuple[Trees, list[mixtures.Forest]] | None

    @classmethod
    def of(cls, members: Members, backend: Backend) -> OnBackend | None:
        """Return members on a backend; None if it leaves them to the host."""
        if (ops := backend.mixture_ops()) is None:
            return None
        kernel, trees = members.kernel, members.trees
        return cls(
            members,
            None if kernel is None else (kernel, ops.similarity(mixed.compared(kernel.landmarks), kernel.weight)),
            None if trees is None else (trees, [ops.forest(_nodes(forest)) for _, forest in trees.forests]),
        )

    def predict(self, of: Prepared | Molecules) -> dict[str, NDArray[np.float64]]:
        """Return what `Members.predict` returns, but for the rounding of similarities."""
        shape = len(of), len(self.members.transforms.each)
        found = {name: np.empty(shape) for name, own in ((KERNEL, self.kernel), (TREES, self.trees)) if own is not None}
        for first in range(0, len(of), _BLOCK):
            rows = slice(first, first + _BLOCK)
            own = of[rows]
            prepared = self.members.preparation.apply(own) if isinstance(own, Molecules) else own
            if self.kernel is not None:
                kernel, similarity = self.kernel
                regressions = similarity.products(mixed.compared(prepared), kernel.weights) + kernel.intercept
                found[KERNEL][rows] = self.members.outputs_of_kernel(regressions)
            if self.trees is not None:
                trees, forests = self.trees
                x = ordered(self.members.preparation.table(prepared))
                outputs = trees.of_forests((forest.means(x) for forest in forests), len(x))
                found[TREES][rows] = self.members.transforms.invert(outputs)
        return found


def _nodes(forest: Forest) -> mixtures.Nodes:
    nodes, leaves = forest.packed
    return mixtures.Nodes(nodes, leaves.astype(np.int32), forest.roots.astype(np.int32), forest.values)
