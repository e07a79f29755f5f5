"""Drawings of molecules as SVG, by RDKit in a forked process with limits (`gcnbatch.data.guard`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

from gcnbatch.data import guard

WIDTH, HEIGHT = 240, 160
MOST_CHARACTERS, MOST_ATOMS = 1000, 150  # of a SMILES and of a molecule that are drawn
NO_RDKIT = "RDKit is not installed: pip install 'gcnbatch[chem]'"
_PATH = re.compile(r"<path ([^<>]*)/>")
_ATTRIBUTE = re.compile(r"([\w-]+)='([^'<>\"]*)'")
_STYLE = re.compile(r"(fill|stroke|stroke-width):([#.\w]+)")


def has_rdkit() -> bool:
    """Return whether RDKit is installed; it is not imported."""
    return find_spec("rdkit") is not None


def draw(smiles: Sequence[str]) -> list[str]:
    """Return an ``<svg>`` element per molecule; "" for one that cannot be drawn.

    An element holds paths with numbers and colours alone, so that no text of a SMILES gets into a page.
    """
    found: list[str] = []
    for part in guard.run(_draw, smiles, "RDKit"):
        found += [""] if isinstance(part, guard.Lost) else part
    return found


def _draw(smiles: Iterable[str], first: int) -> list[str]:
    from rdkit import Chem, rdBase
    from rdkit.Chem.Draw import rdMolDraw2D

    rdBase.DisableLog("rdApp.*")
    found = []
    for text in smiles:
        molecule = Chem.MolFromSmiles(text) if len(text) <= MOST_CHARACTERS else None
        if molecule is None or not 0 < molecule.GetNumAtoms() <= MOST_ATOMS:
            found.append("")
            continue
        canvas = rdMolDraw2D.MolDraw2DSVG(WIDTH, HEIGHT)
        rdMolDraw2D.PrepareAndDrawMolecule(canvas, molecule)
        canvas.FinishDrawing()
        found.append(_compact(canvas.GetDrawingText()))
    return found


def _compact(svg: str) -> str:
    """Return the paths of RDKit's drawing, not its white background; those of equal looks and neighbours become one."""
    paths: list[tuple[str, str]] = []
    for path in _PATH.findall(svg):
        attributes = dict(_ATTRIBUTE.findall(path))
        looks = dict(_STYLE.findall(attributes.get("style", ""))) or {"fill": attributes.get("fill", "#000000")}
        key = " ".join(f'{name}="{value}"' for name, value in looks.items())
        line = " ".join(attributes.get("d", "").split())
        if paths and paths[-1][0] == key:
            line = f"{paths.pop()[1]} {line}"
        paths.append((key, line))
    drawn = "".join(f'<path {looks} d="{line}"/>' for looks, line in paths)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true">{drawn}</svg>'
