"""Drawings of molecules as SVG, by RDKit in a forked process with limits (`gcnbatch.data.guard`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from gcnbatch.data import guard
from gcnbatch.data.featurizer import FeaturizerOptions, graph_form, load_rdkit
from gcnbatch.data.normal_form import in_order

WIDTH, HEIGHT = 240, 160
MOST_CHARACTERS, MOST_ATOMS = 1000, 150  # of a SMILES and of a molecule that are drawn
NO_RDKIT = "RDKit is not installed: pip install 'gcnbatch[chem]'"
NO_LIBRARIES = "RDKit may miss libraries of a desktop: apt-get install libxrender1 libxext6"
_PATH = re.compile(r"<path ([^<>]*)/>")
_ATTRIBUTE = re.compile(r"([\w-]+)='([^'<>\"]*)'")
_STYLE = re.compile(r"(fill|stroke|stroke-width):([#.\w]+)")


def has_rdkit() -> bool:
    """Return whether RDKit is installed; it is not imported."""
    return find_spec("rdkit") is not None


def can_draw() -> bool:
    """Return whether RDKit finds the libraries that it draws with."""
    return _drawer() is not None


@dataclass(frozen=True)
class Layout:
    """A molecule on a plane of WIDTH x HEIGHT.

    Parameters
    ----------
    symbols : tuple of N str
        Elements of the atoms, in the order of the graph's nodes.
    paths : str
        Its drawing, as elements of an SVG; "" for one that is not drawn.
    points : tuple of N (float, float)
        Places of the atoms in the drawing.
    bonds : tuple of (int, int)
        Atoms of each bond, the smaller number first.
    smiles : str
        A SMILES with the atoms in this order; "" if it is not known.
    """

    symbols: tuple[str, ...]
    paths: str = ""
    points: tuple[tuple[float, float], ...] = ()
    bonds: tuple[tuple[int, int], ...] = ()
    smiles: str = ""


def too_large(layout: Layout) -> str:
    """Return why a molecule is not drawn if that is its size, else ""."""
    count = len(layout.symbols)
    return f"{count:,} atoms, more than {MOST_ATOMS}" if count > MOST_ATOMS else ""


def draw(smiles: Sequence[str]) -> list[str]:
    """Return an ``<svg>`` element per molecule; "" for one that cannot be drawn.

    An element holds paths with numbers and colours alone, so that no text of a SMILES gets into a page.
    """
    drawer = _drawer()
    if drawer is None:
        return [""] * len(smiles)
    layouts = guard.each(lambda text: _layout(_read(text), drawer), smiles, "RDKit", None)
    found = [None if one is None else one.paths for one in layouts]
    return [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true">{paths}</svg>' if paths else "" for paths in found]


def layouts(smiles: Sequence[str], options: FeaturizerOptions) -> list[Layout | None]:
    """Return each molecule with the atoms of its graph, and its drawing; None for one that cannot be read."""
    drawer = _drawer()

    def lay_out(text: str) -> Layout | None:
        form = in_order(graph_form(text, options))
        layout = None if form is None else _layout(form.molecule, drawer)
        return None if form is None or layout is None else replace(layout, smiles=form.name)

    return guard.each(lay_out, smiles, "RDKit", None)


def _read(text: str) -> Any:
    return load_rdkit().MolFromSmiles(text) if len(text) <= MOST_CHARACTERS else None


def _drawer() -> Any:
    """Return RDKit's module that draws, imported once for the forks of a call; None without the libraries it needs."""
    try:
        from rdkit.Chem.Draw import rdMolDraw2D
    except ImportError:
        return None
    return rdMolDraw2D


def _layout(molecule: Any, drawer: Any) -> Layout | None:
    if molecule is None:
        return None
    symbols = tuple(atom.GetSymbol() for atom in molecule.GetAtoms())
    if drawer is None or not 0 < len(symbols) <= MOST_ATOMS:
        return Layout(symbols)
    canvas = drawer.MolDraw2DSVG(WIDTH, HEIGHT)
    drawer.PrepareAndDrawMolecule(canvas, molecule)
    canvas.FinishDrawing()
    points = [canvas.GetDrawCoords(index) for index in range(len(symbols))]
    ends = [sorted((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx())) for bond in molecule.GetBonds()]
    return Layout(
        symbols,
        _compact(canvas.GetDrawingText()),
        tuple((round(point.x, 1), round(point.y, 1)) for point in points),
        tuple((first, second) for first, second in ends),
    )


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
    return "".join(f'<path {looks} d="{line}"/>' for looks, line in paths)
