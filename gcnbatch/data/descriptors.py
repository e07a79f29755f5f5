"""RDKit's 2D descriptors of all molecules of a chunk at once: its values, in a tenth of its time.

RDKit's functions take one molecule and one descriptor a call, and many compute the same matrix or search again. Here
`rdkit_values` gets from RDKit what needs its molecule: stereochemistry, and cheap descriptors.
`descriptors` computes the others for the chunk, by array operations on `ChunkMolecules`:

- all counts of fragments, hydrogen bonds, alerts and Crippen's atom types by one search
  (`gcnbatch.data.substructures`);
- densities of Morgan's fragments (`gcnbatch.data.fragments`), and partial charges (`gcnbatch.data.charges`);
- what takes a matrix of each molecule (`gcnbatch.data.matrix_descriptors`): Ipc and AvgIpc from the eigenvalues of
  the adjacency matrix, BCUT2D from those of Burden's matrices;
- Chi and Kappa from one list of paths, the EState and surface descriptors from one vector of atoms each.

Values agree with RDKit's to a relative 1e-6, but for Ipc of large molecules. RDKit computes the characteristic
polynomial by a recurrence whose rounding errors grow with the number of atoms. RDKit's functions compute unusual
molecules (see `is_usual`), and those without charges, one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gcnbatch.data.atom_features import Atom
from gcnbatch.data.atom_properties import atomic_weights
from gcnbatch.data.charges import charges, polynomials
from gcnbatch.data.chunk_molecules import ChunkMolecules, is_usual
from gcnbatch.data.fragments import circular, feature_patterns, features
from gcnbatch.data.matrix_descriptors import of_matrices
from gcnbatch.data.normal_form import NormalForm, read_again
from gcnbatch.data.rdkit_binary import AROMATIC, SINGLE, Structures
from gcnbatch.data.smarts import Pattern, compiled
from gcnbatch.data.substructures import Patterns, Plan

Floats = NDArray[np.float64]
Key = TypeVar("Key")
Ints = NDArray[np.int64]
Functions = tuple[tuple[str, Callable[[Any], Any]], ...]
_RARE = re.compile(r"\[(?!(?:Be|Mg|Al|Si|Cl|Br|[BCNOFPSIbcnops])(?![a-z]))")  # elements without partial charges
_LONE = re.compile(r"(?<![^.])\[[A-Z][a-z]?[-+]?\d*\](?![^.])")  # an atom alone, which keeps its formal charge
_DECIMALS = (
    11  # of polar surfaces and Hall's and Kier's alpha, whose terms have few digits: their order then does not matter
)
_UNSIGNED = 1 << 32  # RDKit's valence electrons of an atom are unsigned: those of [BH4-] are 2^32 - 1
_ELECTRON = 0.00054857990907  # its mass
_SHORTER = np.array([0, 0, 0.2, 0.3, 0.1])  # Labute's correction of a bond's length, by its type
# SMARTS in RDKit's C++ code
_COUNTED = {
    "NumHAcceptors": "[$([O,S;H1;v2]-[!$(*=[O,N,P,S])]),$([O,S;H0;v2]),$([O,S;-]),"
    "$([N;v3;!$(N-*=!@[O,N,P,S])]),$([nH0X2,o,s;+0])]",
    "NumHDonors": "[N&!H0&v3,N&!H0&+1&v4,O&H1&+0,S&H1&+0,n&H1&+0]",
    "NumAmideBonds": "C(=[O;!R])N",
    "NumRotatableBonds": "[!$(*#*)&!D1&!$(C(F)(F)F)&!$(C(Cl)(Cl)Cl)&!$(C(Br)(Br)Br)&!$(C([CH3])([CH3])[CH3])"
    "&!$([CD3](=[N,O,S])-!@[#7,O,S!D1])&!$([#7,O,S!D1]-!@[CD3]=[N,O,S])&!$([CD3](=[N+])-!@[#7!D1])"
    "&!$([#7!D1]-!@[CD3]=[N+])]-!@[!$(*#*)&!D1&!$(C(F)(F)F)&!$(C(Cl)(Cl)Cl)&!$(C(Br)(Br)Br)"
    "&!$(C([CH3])([CH3])[CH3])]",
}
_OXYGENS = ("[$(O[CX4,c,!#6!#7!#8!#16])]", "[$(O[#7])]", "[$(OC=[#6,#7,O,S]),$(O[O,S])]")  # types H1, H2, H3
_BESIDE_RING = "[$([A;R][!a])]"


class RdkitValues(NamedTuple):
    """Values that RDKit computes for a usual molecule with N atoms.

    Parameters
    ----------
    others : list of float
        Descriptors that are not computed here; NaN where RDKit fails.
    name : str
        Canonical SMILES.
    centres : list of int
        Places in the name of the atoms that can be a stereocentre, or have a double bond that can.
    counted_centres : tuple of two int
        Stereocentres by RDKit's older perception, and those that are unspecified.
    alerts : int
        Those of QED's alerts that consist of several parts.
    polar, alpha : float
        Polar surface, and Hall's and Kier's alpha.
    """

    others: list[float]
    name: str
    centres: list[int]
    counted_centres: tuple[int, int]
    alerts: int
    polar: float
    alpha: float


def names() -> tuple[str, ...]:
    """Return the names of RDKit's 2D descriptors, in its order."""
    return tuple(name for name, _ in _functions())


def rdkit_values(form: NormalForm) -> RdkitValues | Floats:
    """Return what RDKit computes for a molecule, or all descriptors (D,) of one that is not usual."""
    if not is_usual(form.molecule, form.name):
        return _one_by_one(form.molecule)
    if _RARE.search(form.name):
        bonded = _LONE.sub("", form.name)
        if not bonded.strip(".") or _RARE.search(bonded):
            return _one_by_one(read_again(form.name))
    return _tools(_functions()).rdkit_values(form)


def _one_by_one(molecule: Any) -> Floats:
    return np.array([value(function, molecule) for _, function in _functions()])


def value(function: Callable[[Any], Any], molecule: Any) -> float:
    """Return a descriptor, NaN where RDKit cannot compute it."""
    try:
        return float(function(molecule))
    except (ValueError, RuntimeError, ZeroDivisionError, OverflowError):
        return float("nan")


def descriptors(of_rdkit: Sequence[RdkitValues | Floats], molecules: ChunkMolecules, rows: Ints) -> Floats:
    """Return all descriptors (G, D) of the molecules of a chunk, in the order of `names`.

    Parameters
    ----------
    of_rdkit : sequence
        The result of `rdkit_values` for each molecule.
    molecules : ChunkMolecules
        Those for which RDKit computed values.
    rows : int64
        Their places in the chunk.
    """
    found = np.empty((len(of_rdkit), len(_functions())))
    for row, one in enumerate(of_rdkit):
        if not isinstance(one, RdkitValues):
            found[row] = one
    parts = [one for one in map(of_rdkit.__getitem__, rows.tolist()) if isinstance(one, RdkitValues)]
    if parts:
        tools = _tools(_functions())
        with np.errstate(all="ignore"):
            own = _Chunk(parts, molecules, tools)
            values = own.values()
        columns = [values.get(name) for name in tools.names]
        others = iter(np.array([one.others for one in parts]).reshape(len(parts), len(tools.others)).T)
        found[rows] = np.stack([next(others) if column is None else column for column in columns], axis=1)
        for place in np.flatnonzero(own.uncharged).tolist():  # such as PF5
            found[rows[place]] = _one_by_one(read_again(parts[place].name))
    return found


@cache
def _functions() -> Functions:
    from rdkit.Chem import Descriptors

    return tuple(Descriptors.descList)


class _Tools:
    """What is made once per process: RDKit's functions, patterns and tables."""

    def __init__(self, functions: Functions) -> None:
        from rdkit import Chem
        from rdkit.Chem import QED, Crippen, Fragments, MolSurf, rdMolDescriptors
        from rdkit.Chem.EState import EState, EState_VSA

        self._chem = Chem
        self._plain = rdMolDescriptors.CalcTPSA, rdMolDescriptors.CalcHallKierAlpha
        self._counts = rdMolDescriptors.CalcNumAtomStereoCenters, rdMolDescriptors.CalcNumUnspecifiedAtomStereoCenters
        self._tetrahedral, self._double = Chem.StereoType.Atom_Tetrahedral, Chem.StereoType.Bond_Double
        self.bins = {"PEOE": MolSurf.chgBins, "SMR": MolSurf.mrBins, "SlogP": MolSurf.logpBins}
        self.vsa_bins, self.estate_bins = EState_VSA.vsaBins, EState_VSA.estateBins
        with open(Fragments.defaultPatternFileName) as file:
            rows = [line.rstrip("\n").split("\t") for line in file if line.strip() and not line.startswith("#")]
        counted = {re.sub("[=-]", "_", row[0]): row[2] for row in rows if len(row) > 2} | _COUNTED
        self.plan = Plan()
        read = {name: _readable(text) for name, text in counted.items()}
        self.counted = self._added(read)
        order, patterns = Crippen._ReadPatts(Crippen.defaultPatternFileName)  # type: ignore[no-untyped-call]
        types = [(compiled(text), logp, mr) for kind in order for text, _, logp, mr in patterns[kind]]
        types = [row for row in types if row[0].atoms[0] != ("#", 1)]
        self.crippen = self._added(dict(enumerate(pattern for pattern, _, _ in types)))
        self.contributions = [(logp, mr) for _, logp, mr in types]
        alerts = dict(zip(QED.StructuralAlertSmarts, QED.StructuralAlerts, strict=True))
        read = {text: _readable(text) for text in alerts}
        self.alerts = self._added(read)
        self._other_alerts = [(text, alert) for text, alert in alerts.items() if read[text] is None]
        self.acceptors = self._added({text: compiled(text) for text in QED.AcceptorSmarts})
        self.atoms = {text: self.plan.add(compiled(text)) for text in (*_OXYGENS, "O", _BESIDE_RING)}
        self.features = feature_patterns(self.plan)  # found by the same search
        self.ads = np.array([QED.adsParameters[name] for name in QED.QEDproperties._fields]).T[:, :, None]
        self.weights = np.array(QED.WEIGHT_MEAN)
        table = Chem.GetPeriodicTable()
        numbers = range(119)
        self.outer = np.array([table.GetNOuterElecs(number) for number in numbers])
        self.mass = atomic_weights()
        self.exact_mass = np.array([table.GetMostCommonIsotopeMass(number) for number in numbers])
        self.radius = np.array([table.GetRb0(number) for number in numbers])
        shell: Any = EState.GetPrincipleQuantumNumber
        self.shell = np.array([shell(number) for number in numbers])
        kinds = Chem.HybridizationType
        self.hybridisation = np.full(32, 4)  # SPS's score
        self.hybridisation[[int(kinds.SP), int(kinds.SP2), int(kinds.SP3)]] = 1, 2, 3
        computed = _computed_names(self)
        self.names = [name for name, _ in functions]
        self.others = [function for name, function in functions if name not in computed]

    def _added(self, patterns: Mapping[Key, Pattern | None]) -> Patterns[Key]:
        """Add those that can be searched for to the plan."""
        return Patterns((key, self.plan.add(one)) for key, one in patterns.items() if one is not None)

    def rdkit_values(self, form: NormalForm) -> RdkitValues:
        """Return what RDKit computes for a usual molecule."""
        molecule, name, _ = form
        centres, counted = self._stereo(molecule)
        return RdkitValues(
            [value(function, molecule) for function in self.others],
            name,
            form.places(centres),
            counted,
            sum(
                all(name.count(letter) >= text.count(letter) for letter in "FO") and molecule.HasSubstructMatch(alert)
                for text, alert in self._other_alerts
            ),
            *(round(function(molecule), _DECIMALS) for function in self._plain),
        )

    def _stereo(self, molecule: Any) -> tuple[list[int], tuple[int, int]]:
        """Return `centres` and `counted_centres` of `RdkitValues`; the molecule keeps stereochemistry that is found.

        RDKit's older perceptions of atoms and of bonds find a part of what `FindPotentialStereo` finds.
        """
        chem = self._chem
        vector = chem.FindPotentialStereo(molecule)  # an iterator of it ends with an exception of C++, which takes 8 us
        found = [(one.type, one.centeredOn) for one in map(vector.__getitem__, range(len(vector)))]
        centres = [place for kind, place in found if kind == self._tetrahedral]
        counted = 0, 0
        if centres:
            chem.AssignStereochemistry(molecule, True, False, True)  # else each count would do that
            counted = self._counts[0](molecule), self._counts[1](molecule)
        bonds = [place for kind, place in found if kind == self._double]
        if bonds:
            molecule = chem.Mol(molecule)  # which is changed
            chem.FindPotentialStereoBonds(molecule)
            for bond in map(molecule.GetBondWithIdx, bonds):
                if bond.GetStereo() != chem.BondStereo.STEREONONE:
                    centres += (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx())
        return centres, counted


@cache
def _tools(functions: Functions) -> _Tools:
    return _Tools(functions)


def _readable(smarts: str) -> Pattern | None:
    try:
        return compiled(smarts)
    except ValueError:
        return None


def _computed_names(tools: _Tools) -> frozenset[str]:
    """Return the names of the descriptors that `_Chunk` computes, of those of methane."""
    atom = Atom(6, 0, 3, 4, 4, 0, False)
    none, one = np.zeros(0, np.int64), np.ones(1, np.int64)
    structure = Structures(
        one, one - 1, one - 1, one - 1, none.reshape(0, 2), none, none > 0, none, none, none, np.ones(1, bool)
    )
    methane = ChunkMolecules(structure, [atom])
    with np.errstate(all="ignore"):
        return frozenset(_Chunk([RdkitValues([], "C", [], (0, 0), 0, 0.0, 0.0)], methane, tools).values())


class _Chunk:
    """The descriptors of the molecules of a chunk for which RDKit computed values."""

    def __init__(self, of_rdkit: Sequence[RdkitValues], molecules: ChunkMolecules, tools: _Tools) -> None:
        self.of_rdkit, self.molecules, self.tools = of_rdkit, molecules, tools
        self.search = molecules.search(tools.plan)
        molecules.features = features(self.search, tools.features)
        coefficients = polynomials(molecules)
        found = charges(molecules, coefficients)
        unknown = ~np.isfinite(found)
        self.charges = np.where(unknown, 0, found)
        self.uncharged = molecules.sum(unknown) > 0
        self.lacks_coefficients = molecules.sum(np.isnan(coefficients[:, 0])) > 0
        self.volumes, self.surface = self._labute()

    def values(self) -> dict[str, NDArray[Any]]:
        """Return the values (G,) of the descriptors by name."""
        counted = self.tools.counted
        found: dict[str, NDArray[Any]] = dict.fromkeys(counted, np.zeros(self.molecules.size, np.int64))
        found |= {name: self.search.count(counted[name]) for name in self.search.possible(counted)}
        for part in (self._counts, self._ring_counts, self._crippen, self._of_matrices, self._paths, self._surfaces):
            found |= part()
        found["qed"] = self._qed(found)
        return found

    # ---------------------------------------------------------------------------------- sums over atoms and rings

    def _counts(self) -> dict[str, NDArray[Any]]:
        number, hydrogens = self.molecules.number, self.molecules.hydrogens
        polar, carbon = (number == 7) | (number == 8), number == 6
        sp3 = self.molecules.sum(carbon & (self.molecules.degree + hydrogens == 4))
        centre = np.ones(len(number), np.int64)
        places = [
            np.array(one.centres, np.int64) + start
            for one, start in zip(self.of_rdkit, self.molecules.starts, strict=True)
        ]
        centre[np.concatenate(places)] = 2
        score = self.tools.hybridisation[self.molecules.hybridisation] * centre * self.molecules.degree**2
        score = np.where((self.molecules.rings > 0) & ~self.molecules.aromatic, 2 * score, score)
        least, most = (self._reduced(one, self.charges) for one in (np.minimum, np.maximum))
        counted = np.array([one.counted_centres for one in self.of_rdkit]).T
        return {
            "HeavyAtomCount": self.molecules.n_atoms,
            "NumHeteroatoms": self.molecules.sum(~carbon),
            "NOCount": self.molecules.sum(polar),
            "NHOHCount": self.molecules.sum(np.where(polar, hydrogens, 0)),
            "FractionCSP3": sp3 / np.maximum(self.molecules.sum(carbon), 1),
            "NumValenceElectrons": self.molecules.sum(self.tools.outer[number] - self.molecules.charge + hydrogens),
            "NumRadicalElectrons": self.molecules.sum(self.molecules.radicals),
            **self._masses(),
            "NumAtomStereoCenters": counted[0],
            "NumUnspecifiedAtomStereoCenters": counted[1],
            "TPSA": np.array([one.polar for one in self.of_rdkit]),
            "SPS": self.molecules.sum(score) / self.molecules.n_atoms,
            "MinPartialCharge": least,
            "MaxPartialCharge": most,
            "MinAbsPartialCharge": np.minimum(abs(least), abs(most)),
            "MaxAbsPartialCharge": np.maximum(abs(least), abs(most)),
            **self._densities(),
        }

    def _densities(self) -> dict[str, Floats]:
        """Return the numbers of distinct Morgan fragments of radius 1, 2, 3 at most, by atom."""
        molecule, codes = zip(*circular(self.molecules, 3), strict=True)
        radius = np.repeat(np.arange(4), [len(own) for own in codes])
        keys, first = np.unique(np.concatenate(molecule) << 32 | np.concatenate(codes), return_index=True)
        found = {}
        for most in (1, 2, 3):
            count = np.bincount(keys[radius[first] <= most] >> 32, minlength=self.molecules.size)
            found[f"FpDensityMorgan{most}"] = count / self.molecules.n_atoms
        return found

    def _masses(self) -> dict[str, Floats]:
        average, exact = self.tools.mass, self.tools.exact_mass
        heavy, hydrogens = (
            self.molecules.sum(average[self.molecules.number]),
            self.molecules.sum(self.molecules.hydrogens),
        )
        return {
            "HeavyAtomMolWt": heavy,
            "MolWt": heavy + hydrogens * average[1],
            "ExactMolWt": self.molecules.sum(exact[self.molecules.number] - _ELECTRON * self.molecules.charge)
            + hydrogens * exact[1],
        }

    def _reduced(self, function: np.ufunc, values: Floats) -> Floats:
        return np.asarray(function.reduceat(values, self.molecules.starts))

    def _ring_counts(self) -> dict[str, NDArray[Any]]:
        count = len(self.molecules.of_ring)
        kinds = self.molecules.kind[self.molecules.ring_bonds]
        aromatic = np.bincount(self.molecules.ring, kinds != AROMATIC, count) == 0
        saturated = np.bincount(self.molecules.ring, kinds != SINGLE, count) == 0
        hetero = np.bincount(self.molecules.ring, self.molecules.number[self.molecules.ring_atoms] != 6, count) > 0

        def rings(mask: Any) -> Ints:
            return np.bincount(self.molecules.of_ring[mask], minlength=self.molecules.size)

        found = {
            "RingCount": np.bincount(self.molecules.of_ring, minlength=self.molecules.size),
            "NumHeterocycles": rings(hetero),
        }
        for name, mask in (("Aromatic", aromatic), ("Aliphatic", ~aromatic), ("Saturated", saturated)):
            found[f"Num{name}Rings"] = rings(mask)
            found[f"Num{name}Carbocycles"] = rings(mask & ~hetero)
            found[f"Num{name}Heterocycles"] = rings(mask & hetero)
        return found

    # ---------------------------------------------------------------------------------- searches

    def _crippen(self) -> dict[str, NDArray[Any]]:
        """Give each atom the first type that it matches; hydrogens, which are no atoms, by their atom."""
        self.logp, self.mr = np.zeros((2, len(self.molecules.number)))
        needed = np.ones(len(self.molecules.number), bool)
        for number in self.search.possible(self.tools.crippen):
            first = self.search.matches(self.tools.crippen[number], needed)[0]
            self.logp[first], self.mr[first] = self.tools.contributions[number]
            needed[first] = False
        of_carbon, *others = map(self._holds, _OXYGENS)
        oxygen = np.select([of_carbon | (self.molecules.hydrogens > 1), *others], [1, 2, 3], 4)
        plain = np.select(
            [self.molecules.number == 6, self.molecules.number == 7, self.molecules.number != 8], [0, 2, 1], 4
        )
        kind = np.where(self._holds("O"), oxygen, plain)
        # Types H1, H2, H3, H4 and HS
        logp, mr = np.array([[0.123, -0.2677, 0.2142, 0.298, 0.1125], [1.057, 1.395, 0.9627, 1.805, 1.112]])
        return {
            "MolLogP": self.molecules.sum(self.logp + self.molecules.hydrogens * logp[kind]),
            "MolMR": self.molecules.sum(self.mr + self.molecules.hydrogens * mr[kind]),
        }

    def _holds(self, smarts: str) -> NDArray[np.bool_]:
        return self.search.atoms(self.tools.atoms[smarts])

    def _qed(self, found: dict[str, NDArray[Any]]) -> Floats:
        alerts = np.array([one.alerts for one in self.of_rdkit])
        for alert in self.search.possible(self.tools.alerts):
            first = self.search.matches(self.tools.alerts[alert])[0]
            alerts += np.bincount(self.molecules.molecule[first], minlength=self.molecules.size) > 0
        acceptors = np.zeros(self.molecules.size, np.int64)
        for acceptor in self.search.possible(self.tools.acceptors):
            acceptors += self.search.count(self.tools.acceptors[acceptor])
        x = np.stack(
            [
                found["MolWt"],
                found["MolLogP"],
                acceptors,
                found["NumHDonors"],
                found["TPSA"],
                found["NumRotatableBonds"],
                self._rings_left(),
                alerts,
            ]
        )
        a, b, c, d, e, f, largest = self.tools.ads
        rising, falling = 1 + np.exp(-(x - c + d / 2) / e), 1 + np.exp(-(x - c - d / 2) / f)
        desirable = (a + b / rising * (1 - 1 / falling)) / largest
        weights = self.tools.weights
        return np.exp((weights[:, None] * np.log(desirable)).sum(axis=0) / weights.sum())

    def _rings_left(self) -> Ints:
        """Return the number of rings without the aliphatic atoms of rings that have an aliphatic neighbour."""
        kept = ~self._holds(_BESIDE_RING)
        ends = self.molecules.ends[self.molecules.in_ring & kept[self.molecules.ends].all(axis=1)]
        group = np.arange(len(self.molecules.number))
        while len(ends):
            least = group[ends].min(axis=1)
            before = group.copy()
            np.minimum.at(group, ends.ravel(), np.repeat(least, 2))
            group = group[group]  # long chains take few rounds
            if (group == before).all():
                break
        atoms = np.unique(ends)
        trees = self._sum_of(atoms) - self._sum_of(np.unique(group[atoms]))
        return self._sum_of(ends[:, 0]) - trees

    def _sum_of(self, atoms: Ints) -> Ints:
        return np.bincount(self.molecules.molecule[atoms], minlength=self.molecules.size)

    # ---------------------------------------------------------------------------------- matrices and paths

    def _of_matrices(self) -> dict[str, NDArray[Any]]:
        of_atoms = np.stack([self.tools.mass[self.molecules.number], self.charges, self.logp, self.mr])
        shells = self.tools.outer[self.molecules.number], self.tools.shell[self.molecules.number]
        # RDKit computes none of Burden's matrices without coefficients, also for salts whose charges it knows
        found, self.estate = of_matrices(self.molecules, of_atoms, *shells, self.lacks_coefficients)
        return found

    def _paths(self) -> dict[str, NDArray[Any]]:
        """Compute Chi and Kappa from all paths of at most 4 bonds, each found in both directions."""
        number, outer = self.molecules.number, self.tools.outer[self.molecules.number]
        valence = ((outer - self.molecules.hydrogens) % _UNSIGNED).astype(float)
        kier = np.where(number <= 10, valence, valence / np.where(number > 10, number - outer - 1, 1))
        deltas = {"n": valence, "v": np.where(number <= 1, 0, kier)}
        roots = {name: np.where(delta != 0, 1 / np.sqrt(delta), 0) for name, delta in deltas.items()}
        root = np.where(self.molecules.degree > 0, 1 / np.sqrt(self.molecules.degree), 0)
        found: dict[str, NDArray[Any]] = {"Chi0": self.molecules.sum(root)}
        found["Chi1"] = np.bincount(self.molecules.of_bond, root[self.molecules.ends].prod(axis=1), self.molecules.size)
        for name, values in roots.items():
            found[f"Chi0{name}"] = self.molecules.sum(values)
            found[f"Chi1{name}"] = np.bincount(
                self.molecules.of_bond, values[self.molecules.ends].prod(axis=1), self.molecules.size
            )
        first, degree = self.molecules.first_edge, self.molecules.degree
        paths = [self.molecules.src, self.molecules.dst]
        products = {name: values[paths[0]] * values[paths[1]] for name, values in roots.items()}
        counts: list[NDArray[Any]] = [self.molecules.n_bonds]
        for length in (2, 3, 4):
            last = paths[-1]
            rows = np.repeat(np.arange(len(last)), degree[last])
            added = np.arange(len(rows)) + np.repeat(first[last] - np.cumsum(degree[last]) + degree[last], degree[last])
            added = self.molecules.dst[added]
            closes = paths[0][rows] == added
            before = [atoms[rows] == added for atoms in paths[1:-1]]
            is_new = ~np.logical_or.reduce(before) if before else np.ones(len(rows), bool)
            ring = np.flatnonzero(is_new & closes) if length > 2 else np.zeros(0, np.int64)
            # RDKit takes an atom on a ring of three for a path of 4 bonds; the atom where it closes counts twice.
            tailed = np.flatnonzero(before[0]) if length == 4 else np.zeros(0, np.int64)
            path = np.flatnonzero(is_new & ~closes)
            molecule = self.molecules.molecule[added]
            for name, values in roots.items():
                shorter, own = products[name], products[name][rows[path]] * values[added[path]]
                found[f"Chi{length}{name}"] = (
                    self._over(molecule[path], own, 2)
                    + self._over(molecule[ring], shorter[rows[ring]], 2 * length)
                    + self._over(molecule[tailed], shorter[rows[tailed]] * values[added[tailed]], 2)
                )
                products[name] = own
            counts.append(self._over(molecule[path], None, 2) + self._over(molecule[ring], None, 2 * length))
            paths = [*(atoms[rows[path]] for atoms in paths), added[path]]
        return found | self._kappa(counts)

    def _over(self, molecule: Ints, products: Floats | None, times: int) -> Floats:
        """Return the sum of the products along paths in each molecule, each path found so many times; None: of ones."""
        return np.bincount(molecule, products, self.molecules.size) / times

    def _kappa(self, counts: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        alpha = np.array([one.alpha for one in self.of_rdkit])
        size = self.molecules.n_atoms + alpha
        less = np.where(self.molecules.n_atoms % 2 == 1, 1, 2)
        above = (size * (size - 1) ** 2, (size - 1) * (size - 2) ** 2, (size - less) * (size - 3) ** 2)
        below = [(count + alpha) ** 2 for count in counts]
        kappa = [np.where(down != 0, up / down, 0) for up, down in zip(above, below, strict=False)]
        found = {f"Kappa{order}": values for order, values in enumerate(kappa, 1)}
        return found | {"Phi": kappa[0] * kappa[1] / self.molecules.n_atoms, "HallKierAlpha": alpha}

    # ---------------------------------------------------------------------------------- surfaces

    def _surfaces(self) -> dict[str, NDArray[Any]]:
        """Sum a property of the atoms over bins of another one."""
        estate, size = self.estate, np.abs(self.estate)
        found: dict[str, NDArray[Any]] = {
            "MaxEStateIndex": self._reduced(np.maximum, estate),
            "MinEStateIndex": self._reduced(np.minimum, estate),
            "MaxAbsEStateIndex": self._reduced(np.maximum, size),
            "MinAbsEStateIndex": self._reduced(np.minimum, size),
            "LabuteASA": self.surface,
        }
        for name, of_atoms in (("PEOE", self.charges), ("SMR", self.mr), ("SlogP", self.logp)):
            found |= self._binned(f"{name}_VSA", self.tools.bins[name], of_atoms, self.volumes)
        found |= self._binned("EState_VSA", self.tools.estate_bins, estate, self.volumes)
        return found | self._binned("VSA_EState", self.tools.vsa_bins, self.volumes, estate)

    def _labute(self) -> tuple[Floats, Floats]:
        """Return Labute's surface of each atom (N,), and of each molecule with all hydrogens (G,)."""
        own, hydrogen = self.tools.radius[self.molecules.number], self.tools.radius[1]
        i, j = own[self.molecules.ends].T
        between = np.clip(i + j - _SHORTER[self.molecules.kind], abs(i - j), i + j)
        hidden = own * 0 + hydrogen**2 - hydrogen**2 / (own + hydrogen)
        for column, part in ((0, j**2 - (i - between) ** 2 / between), (1, i**2 - (j - between) ** 2 / between)):
            hidden += np.bincount(self.molecules.ends[:, column], part, len(own))
        atoms = np.pi * own * (4 * own - hidden)
        of_hydrogens = np.pi * hydrogen * (4 * hydrogen - self.molecules.sum(own**2 - own**2 / (own + hydrogen)))
        return atoms, self.molecules.sum(atoms) + of_hydrogens

    def _binned(self, name: str, bins: Sequence[float], by: Floats, values: Floats) -> dict[str, NDArray[Any]]:
        width = len(bins) + 1
        flat = np.bincount(
            self.molecules.molecule * width + np.searchsorted(bins, by, "right"), values, self.molecules.size * width
        )
        return {f"{name}{number}": column for number, column in enumerate(flat.reshape(-1, width).T, 1)}
