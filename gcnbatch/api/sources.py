"""What `train` trains: a configuration or recipe, and a data set, a set in memory, or a table that is imported."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcnbatch.api.options import graphs_of, run_name
from gcnbatch.data.endings import is_dataset, is_table
from gcnbatch.errors import InputError
from gcnbatch.options.declaration import chosen, part
from gcnbatch.options.imports import ImportSmilesOptions, TableOptions
from gcnbatch.resources import shipped_config

if TYPE_CHECKING:
    from gcnbatch.config import Config
    from gcnbatch.config_sections import MoleculesConfig, SplitConfig
    from gcnbatch.data.graphs import GraphSet
    from gcnbatch.options.sources import ConfigLike, DataLike
    from gcnbatch.options.training import TrainOptions
    from gcnbatch.workers.pool import Workers

RECIPE = "best"  # of molecules for which no configuration is named


def sources(given: TrainOptions) -> tuple[ConfigLike | None, DataLike | None, dict[str, Any]]:
    """Return configuration, data and single keys: the first argument may be the data, and a recipe be named.

    A run of a recipe has the name of its data.

    Raises
    ------
    InputError
        For two data sets or two configurations, and for a recipe that is not shipped.
    """
    config, data, settings = given.config, given.data, dict(given.settings or {})
    alone = is_dataset(config) or is_table(config)
    if alone and data is not None:
        raise InputError("--data", f"given with {config}, which is data, too", "one of them")
    if alone:
        config, data = None, config
    if given.recipe and config is not None:
        raise InputError("--recipe", "given with a configuration", "one of them")
    recipe = given.recipe or (RECIPE if config is None and not given.from_run and (alone or is_table(data)) else "")
    if not recipe:
        return config, data, settings
    if data is not None:
        settings = {"name": run_name(_name_of(data)) or recipe, **settings}
    return shipped_config(recipe), data, settings


def leave_none_out(tree: dict[str, Any]) -> None:
    """Set the keys that make all rows training rows.

    Raises
    ------
    InputError
        When each network has the same validation rows.
    """
    split = tree.setdefault("split", {})
    if not isinstance(split, dict) or not split.get("cross_fit"):
        raise InputError("--use-all", "given without split.cross_fit", "a recipe that has it, such as best or gcn")
    if split.get("folds"):
        raise InputError("--use-all", "given with folds, whose test parts are all rows", "one of them")
    split["test"] = 0.0
    if split.get("kind", "predefined") == "predefined":
        split["kind"] = "random"


def maker(
    given: TrainOptions, config: Config, data: DataLike | None, workers: Workers | None
) -> Callable[[Config, Path], Config] | None:
    """Return what writes the data set of a run's own: of a set in memory, or of a table. None where it has none.

    `workers` convert molecules; see `import_table`.

    Raises
    ------
    InputError
        For options of tables without a table.
    """
    graphs = graphs_of(data)
    if graphs is None and is_table(config.data.path):
        has_rule = not _is_open(config.split) and config.split.rule != "time"
        if given.time_column and has_rule and not (given.split_column or given.use_all):
            got = "given with folds, repeats or a split.kind that does not split by time"
            raise InputError("--time-column", got, "one of them")
        return partial(_import, given, workers)
    options = [*chosen(vars(given), TableOptions), *(["--on-bad-row"] if given.on_bad_row != "skip" else [])]
    options += [f"--set {key}" for key in given.settings or {} if key.startswith("molecules.")]
    if options:
        what = "a set in memory" if graphs is not None else config.data.path or config.data.synthetic or "no data"
        hint = "A data set keeps what its import made."
        raise InputError(", ".join(options), f"given with {what}", "a table of molecules", hint)
    return write_set(graphs)


def write_set(graphs: GraphSet | None) -> Callable[[Config, Path], Config] | None:
    """Return what writes a set in memory, if there is one."""
    if graphs is None:
        return None

    def write(config: Config, out: Path) -> Config:
        from gcnbatch.data.store import write_graphset

        write_graphset(out, graphs)
        return config

    return write


def _import(given: TrainOptions, workers: Workers | None, config: Config, out: Path) -> Config:
    """Import the table that the configuration names; return it with the split of the table, or by its times, if any."""
    from gcnbatch.api.imports import import_table

    if config.train.from_run:
        config = config.model_copy(update={"molecules": _molecules_of(config.train.from_run)})
    split = config.split
    open_to_splits = _is_open(split)
    options = ImportSmilesOptions(
        config.data.path,
        out,
        **part(given, TableOptions),
        **config.molecules.model_dump(),
        on_bad_row=given.on_bad_row,
        progress=not given.quiet,
    )
    by_time = bool(given.time_column) and not given.split_column
    summary = import_table(options, open_to_splits and not by_time, workers)
    for line in (*summary.roles(), *summary.said()):
        given.say(line)
    if not open_to_splits or not (by_time or summary.splits):
        return config
    kind = "time" if by_time else "predefined"
    return config.model_copy(update={"split": split.model_copy(update={"kind": kind})})


def _is_open(split: SplitConfig) -> bool:
    """Return whether a split may become that of a table or of its times."""
    return "kind" not in split.model_fields_set and not split.folds and split.repeats == 1


def _molecules_of(run: str) -> MoleculesConfig:
    """Return what molecules became for the run to start from."""
    from gcnbatch.config_sections import MoleculesConfig
    from gcnbatch.data.featurizer_options import FeaturizerOptions
    from gcnbatch.training.warm_start import source

    of = FeaturizerOptions.from_header(source(run).header.featurizer)
    found = {name: getattr(of, name) for name in MoleculesConfig.model_fields if hasattr(of, name)}
    found |= {"positional": f"rw{of.walk}" if of.walk else "", "fingerprint": ",".join(of.fingerprints)}
    return MoleculesConfig(**found, fingerprint_radius=of.radius, fingerprint_size=of.size)


def _name_of(data: DataLike) -> str:
    graphs = graphs_of(data)
    return Path(data).name.split(".")[0] if graphs is None else graphs.header.name  # type: ignore[arg-type]
