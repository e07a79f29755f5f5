"""The normal form of a molecule. Every graph, feature, scaffold, name and comparison of molecules is made from it.

A molecule has many SMILES: ``CCO``, ``OCC``, ``[CH3:1][CH2:2][OH:3]``, ``[H]OCC``. In its normal form

- atoms are in the order of RDKit's canonical SMILES, whatever their order in the text;
- atom maps are gone, and hydrogens are a number of their atom. Isotopes, bridging hydrogens, ``[H+]``, ``[H-]`` and
  ``[H][H]`` stay atoms; so does a hydrogen that alone gives the geometry of a double bond, if stereochemistry is kept;
- aromatic bonds are those that RDKit perceives in the Kekulé structure;
- largest fragment and neutralisation are done, if the options ask for them.

Charges, isotopes, radicals and, on demand, the stereochemistry of atoms and double bonds are kept. Tautomers and
resonance forms stay different molecules. RDKit's canonical SMILES is not unique for a few rings whose atoms are all
alike but for stereochemistry, such as stereoisomers of inositol: `NormalForm.name` can then differ, the graph does not.

This module imports little, because worker processes import it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from gcnbatch.data.featurizer_options import FeaturizerOptions
from gcnbatch.errors import MachineError

_MAP = re.compile(r":\d+\]")
_OTHER_CENTRES = re.compile(r"@(?:TH|AL|SP|TB|OH)\d+")  # RDKit's canonical SMILES does not order them
_HYDROGEN = re.compile(r"\[\d*(?:H|#1)")  # of its own
_METAL = re.compile(r"\[(?!\d*(?:[BCNOFPSIbcnops](?![a-z])|Cl|Br))")  # also other elements that are rare in molecules
STEREO = re.compile(r"[@/\\]")  # signs without which a SMILES has no stereochemistry


class NormalForm(NamedTuple):
    """A molecule in normal form.

    Parameters
    ----------
    molecule
        A sanitised RDKit molecule, its atoms in any order.
    name : str
        Its canonical SMILES; "" for a molecule that is not in normal form.
    order : str
        RDKit's list of the atoms in the order of `name`, as text: ``"[2,0,1]"``; "" if they are in this order.
    """

    molecule: Any
    name: str
    order: str

    def places(self, atoms: Sequence[int]) -> list[int]:
        """Return the places of RDKit's atoms in the order of the name."""
        if not atoms or not self.order:
            return list(atoms)
        order = list(map(int, self.order.strip("[,]").split(",")))
        return [order.index(atom) for atom in atoms]


def normal_form(text: str, options: FeaturizerOptions, stereo: bool) -> NormalForm | None:
    """Return the normal form of a SMILES, standardised as `options` say; None where RDKit cannot read it.

    Parameters
    ----------
    text : str
    options : FeaturizerOptions
        Largest fragment and neutralisation.
    stereo : bool
        Keep stereochemistry. Without it, molecules that differ in nothing else have equal normal forms.
    """
    reader = _reader()
    molecule = reader.read(text, stereo)
    standardize = options.largest_fragment or options.neutralize
    if molecule is not None and standardize:
        molecule = reader.standardized(molecule, options, stereo)
    if molecule is None:
        return None
    if not stereo:
        molecule.SetIntProp("_StereochemDone", 1)  # else RDKit would look for it when it writes the name
    name = reader.chem.MolToSmiles(molecule, reader.writing)
    if not name:  # no atoms
        return None
    is_read_from_name = name == text and not standardize and not _HYDROGEN.search(text)
    return NormalForm(molecule, name, "" if is_read_from_name else molecule.GetProp("_smilesAtomOutputOrder"))


def in_order(form: NormalForm | None) -> NormalForm | None:
    """Return a form with its atoms in the order of the name; None where RDKit cannot read the name.

    The molecule is read from its name alone, so that whatever RDKit computes of it is equal to the bit: it adds in the
    order of atoms, bonds and rings.
    """
    if form is None or not form.order:
        return form
    molecule = read_again(form.name)
    return None if molecule is None else NormalForm(molecule, form.name, "")


def has_unique_rings(molecule: Any) -> bool:
    """Whether RDKit finds the same smallest rings in any order of atoms.

    Another smallest set of rings has one that shares two bonds or more with a ring of this set, or an atom in three.
    """
    bridgeheads, shared, _ = _tools()
    return not bridgeheads(molecule) and not molecule.HasSubstructMatch(shared)


def has_diene(molecule: Any) -> bool:
    """Whether a single bond joins two double bonds that may have stereochemistry."""
    *_, diene = _tools()
    return bool(molecule.HasSubstructMatch(diene))


def normal_molecule(text: str, options: FeaturizerOptions) -> Any:
    """Return the RDKit molecule of `normal_form`, read again, with its atoms in order; None where there is none."""
    form = in_order(normal_form(text, options, stereo=True))
    return None if form is None else form.molecule


def read_again(name: str) -> Any:
    """Return the RDKit molecule of a canonical SMILES."""
    return _reader().once_more(name)


def molecule_as_written(text: str, options: FeaturizerOptions) -> Any:
    """Return the RDKit molecule of files that older versions wrote; see `FeaturizerOptions.as_written`."""
    # RDKit would drop everything after a blank, as the name of the molecule.
    molecule = None if len(text.split()) > 1 else load_rdkit().MolFromSmiles(text)
    if molecule is None or not (options.largest_fragment or options.neutralize):
        return molecule
    choose, uncharge = _standardizers()
    if options.largest_fragment:
        molecule = choose(molecule)
    return uncharge(molecule) if options.neutralize else molecule


def load_rdkit() -> Any:
    """Return ``rdkit.Chem``; RDKit's log is switched off.

    Raises
    ------
    MachineError
        When RDKit is not installed.
    """
    try:
        from rdkit import Chem, rdBase
    except ImportError as error:
        raise MachineError("RDKit", "not installed", hint="Install it: pip install 'gcnbatch[chem]'") from error
    rdBase.DisableLog("rdApp.*")
    return Chem


class _Reader:
    """What is made once per process: RDKit and its settings."""

    def __init__(self) -> None:
        self.chem = load_rdkit()
        # Made once: RDKit takes 4 us to read a call's own keywords
        self.writing, self._as_read = self.chem.SmilesWriteParams(), self.chem.SmilesParserParams()
        self._as_read.sanitize = self._as_read.removeHs = False
        steps = self.chem.SanitizeFlags
        self._done = steps.SANITIZE_NONE
        # Of a molecule without stereochemistry, with and without atoms that may be metals
        self._steps = int(steps.SANITIZE_ALL) & ~int(
            steps.SANITIZE_CLEANUPCHIRALITY | steps.SANITIZE_CLEANUPATROPISOMERS
        )
        self._organic_steps = self._steps & ~int(steps.SANITIZE_CLEANUP_ORGANOMETALLICS)
        self._hydrogens, self._all_hydrogens = self.chem.RemoveHsParameters(), self.chem.RemoveHsParameters()
        self._hydrogens.removeDummyNeighbors = self._all_hydrogens.removeDummyNeighbors = True
        self._all_hydrogens.removeDefiningBondStereo = True

    def read(self, text: str, stereo: bool) -> Any:
        """Return the sanitised molecule without atom maps and explicit hydrogens; None where RDKit cannot read it."""
        if len(text.split()) > 1:  # RDKit would drop everything after a blank, as the name of the molecule
            return None
        if "[" in text:
            if ":" in text:
                text = _MAP.sub("]", text)
            if "@" in text:
                text = _OTHER_CENTRES.sub("", text)
            if _HYDROGEN.search(text):
                return self._without_hydrogens(text, stereo)
        signed = STEREO.search(text) is not None
        return self.chem.MolFromSmiles(text) if stereo and signed else self._flat(text, signed)

    def once_more(self, name: str) -> Any:
        """Return the molecule of a canonical SMILES."""
        if STEREO.search(name) or ("[" in name and _HYDROGEN.search(name)):
            return self.chem.MolFromSmiles(name)
        return self._flat(name, signed=False)

    def _flat(self, text: str, signed: bool) -> Any:
        """Read a SMILES without its stereochemistry, which RDKit would look for when it reads in one step.

        `signed`: the text has some.
        """
        molecule = self.chem.MolFromSmiles(text, self._as_read)
        if molecule is None:
            return None
        if signed:
            self.chem.RemoveStereochemistry(molecule)
        steps = self._steps if "[" in text and _METAL.search(text) else self._organic_steps
        return molecule if self.chem.SanitizeMol(molecule, steps, True) == self._done else None  # catches errors

    def _without_hydrogens(self, text: str, stereo: bool) -> Any:
        molecule = self.chem.MolFromSmiles(text)
        if molecule is None:
            return None
        if not stereo:
            self.chem.RemoveStereochemistry(molecule)
        for atom in molecule.GetAtoms():
            if atom.GetAtomicNum() == 0:
                atom.SetNoImplicit(True)  # else the count of an attached hydrogen would be lost
        return self.chem.RemoveHs(molecule, self._hydrogens if stereo else self._all_hydrogens)

    def standardized(self, molecule: Any, options: FeaturizerOptions, stereo: bool) -> Any:
        """Return the standardised molecule, read again: a charge less can change aromaticity and hybridisation."""
        choose, uncharge = _standardizers()
        if options.largest_fragment:
            molecule = choose(molecule)
        if not options.neutralize:
            return molecule
        kekulized = self.chem.Mol(molecule)
        self.chem.Kekulize(kekulized, clearAromaticFlags=True)
        for form in (molecule, kekulized):  # the second for an aromatic carbanion, which gets a hydrogen
            if (found := self.read(self.chem.MolToSmiles(uncharge(form)), stereo)) is not None:
                return found
        return molecule  # RDKit knows no neutral form


@cache
def _reader() -> _Reader:
    return _Reader()


@cache
def _tools() -> tuple[Any, Any, Any]:
    """Return what counts atoms where bridges between rings end; and patterns: an atom in three rings, a diene."""
    from rdkit.Chem.rdMolDescriptors import CalcNumBridgeheadAtoms

    chem = load_rdkit()
    patterns = (chem.MolFromSmarts(text) for text in ("[!R0;!R1;!R2]", "[C,N]=[C,N]-[C,N]=[C,N]"))
    return CalcNumBridgeheadAtoms, *patterns


@cache
def _standardizers() -> tuple[Any, Any]:
    from rdkit.Chem.MolStandardize import rdMolStandardize

    return rdMolStandardize.LargestFragmentChooser().choose, rdMolStandardize.Uncharger().uncharge
