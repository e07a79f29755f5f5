"""Seeded synthetic data sets with the shapes of well-known ones and labels that depend on the graph.

The same preset, size, options and seed give the same bytes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from gcnbatch.data.graphs import GraphSet
from gcnbatch.data.synthetic import molecules, networks
from gcnbatch.data.synthetic.networks import Forecast, forecast
from gcnbatch.data.writer import DatasetWriter
from gcnbatch.errors import InputError, closest
from gcnbatch.fileio import StrPath
from gcnbatch.progress import counter

__all__ = ["MANY_GRAPHS", "PRESETS", "Forecast", "check_options", "forecast", "generate", "write"]
DISK_PER_GRAPH, MEMORY_PER_GRAPH = 160, 80  # least bytes per molecule of any preset
PRESETS = (*molecules.RECIPES, *networks.RECIPES)
MANY_GRAPHS = tuple(molecules.RECIPES)


def generate(
    preset: str, seed: int = 0, graphs: int | None = None, scale: float = 1.0, bond_channels: bool = False
) -> Iterator[GraphSet]:
    """Yield a preset's data set in consecutive parts; each part has the header.

    Parameters
    ----------
    preset : str
        ``tox21``, ``reaction100`` or ``quickstart`` (many graphs); ``citation``, ``reddit`` or ``products`` (one
        graph).
    seed : int
        At least 0.
    graphs : int, optional
        Number of graphs of a many-graph preset; None: that of the original.
    scale : float
        Size of a one-graph preset, 1 being the original's.
    bond_channels : bool
        Many-graph presets: a channel per bond type and one for self-loops, instead of one for all.

    Raises
    ------
    InputError
        Unknown preset, an option that does not apply to it, or a value out of range.
    """
    check_options(preset, seed, graphs, scale, bond_channels)
    if preset in networks.RECIPES:
        return (networks.generate(preset, seed, scale) for _ in range(1))
    return molecules.generate(preset, seed, graphs, bond_channels)


def write(
    preset: str,
    path: StrPath,
    seed: int = 0,
    graphs: int | None = None,
    scale: float = 1.0,
    bond_channels: bool = False,
    progress: bool = False,
) -> None:
    """Generate a preset and write it to `path`; the parameters are those of `generate`.

    `progress` shows progress on stderr.
    """
    check_options(preset, seed, graphs, scale, bond_channels)
    if preset in networks.RECIPES:
        bonds = networks.size(preset, scale)[1]
        with counter(bonds, " edges", scale=True, quiet=not progress) as bar:
            made = networks.stream(preset, seed, scale, bar.update)
            bar.set_description("writing")
            with DatasetWriter(path) as writer:
                if networks.RECIPES[preset].words:
                    writer.append(networks.whole(made))
                else:
                    writer.append_blocks(made.graph, networks.blocks(made), made.features)
                writer.finish(made.graph.header, made.graph.splits)
        return
    total = molecules.RECIPES[preset].graphs if graphs is None else graphs
    _check_room(path, total)
    with counter(total, " graphs", quiet=not progress) as bar, DatasetWriter(path) as writer:
        for part in molecules.generate(preset, seed, graphs, bond_channels):
            writer.append(part)
            bar.update(part.n_graphs)
        writer.finish(part.header)


def _check_room(path: StrPath, graphs: int) -> None:
    """Refuse more graphs than fit on the disk, or whose ids and targets do not fit in memory."""
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        return  # for the writer to refuse
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most = min(shutil.disk_usage(folder).free // DISK_PER_GRAPH, memory // MEMORY_PER_GRAPH)
    if graphs > most:
        raise InputError("--graphs", f"{graphs:,}", f"at most {most:,}, for which this disk and memory have room")


def check_options(preset: str, seed: int, graphs: int | None, scale: float, bond_channels: bool) -> None:
    """Raise InputError if `generate` would refuse these arguments."""
    if preset not in PRESETS:
        raise InputError("preset", f"'{preset}'", ", ".join(PRESETS), closest(preset, PRESETS))
    if seed < 0:
        raise InputError("--seed", str(seed), "a whole number from 0")
    many = preset in molecules.RECIPES
    if graphs is not None and not many:
        raise InputError("--graphs", f"given for {preset}, which is one graph", hint="Use --scale for its size.")
    if graphs is not None and graphs < 1:
        raise InputError("--graphs", str(graphs), "at least 1")
    if many and scale != 1.0:
        raise InputError("--scale", f"given for {preset}, which is many graphs", hint="Use --graphs for its size.")
    if not 0.0 < scale <= 4.0:
        raise InputError("--scale", f"{scale:g}", "above 0, at most 4")
    if bond_channels and not many:
        raise InputError("--bond-channels", f"given for {preset}, which has no bonds", hint="Leave it out.")
