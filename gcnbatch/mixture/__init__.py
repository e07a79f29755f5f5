"""The best model of a table of molecules, but for the network: kernel, trees, transforms of targets, and weights.

A program makes a `Problem` of targets and groups, and `Molecules` of features; `fit_members` fits kernel and trees, and
`mix` finds the weights, with out-of-fold outputs of a network beside them. All inputs are arrays; nothing here knows
run folders, metrics or devices.
"""

from gcnbatch.mixture.members import Members, choose_kinds, fit_members
from gcnbatch.mixture.mixture import Mixed, Mixture, Share, mix
from gcnbatch.mixture.molecules import Molecules, Preparation, Prepared
from gcnbatch.mixture.problem import Bounds, Problem

__all__ = [
    "Bounds",
    "Members",
    "Mixed",
    "Mixture",
    "Molecules",
    "Preparation",
    "Prepared",
    "Problem",
    "Share",
    "choose_kinds",
    "fit_members",
    "mix",
]
