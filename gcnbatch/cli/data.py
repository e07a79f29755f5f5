"""``gcnbatch data``: describe, check, generate, import and extend data sets."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from gcnbatch.cli import data_import, data_khop, data_shard, data_split
from gcnbatch.cli.command import command
from gcnbatch.options.datasets import CheckOptions, DescribeOptions, SynthOptions
from gcnbatch.text import counted, printable

app = typer.Typer(
    no_args_is_help=True, help="Describe, check, generate, import and extend data sets.", rich_markup_mode=None
)
app.add_typer(data_import.app, name="import")
app.command("khop", epilog=data_khop.EPILOG)(data_khop.khop)
app.command("shard", epilog=data_shard.EPILOG)(data_shard.shard)
app.command("split", epilog=data_split.EPILOG)(data_split.split)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
_ANNOUNCED = 256 << 20  # bytes of memory from which the cost of a preset is reported first

INFO_EXAMPLES = """\b
Examples:
  gcnbatch data info tox21.h5
  gcnbatch data info tox21.h5 --plot tox21.png
  gcnbatch data info tox21.h5 --json | jq '.tasks[] | {name, missing}'
"""
CHECK_EXAMPLES = """\b
Examples:
  gcnbatch data check tox21.h5
  gcnbatch data check tox21.h5 --json && gcnbatch train --data tox21.h5
"""
SYNTH_EXAMPLES = """\b
Many graphs; --graphs sets their number:
  quickstart   1,000 small graphs, 3 binary tasks; trains in seconds
  tox21        7,831 graphs, 12 binary tasks, a fifth of the labels missing
  reaction100  75,477 graphs of at most 50 nodes, 100 classes
One graph; --scale sets its size:
  citation     2,708 nodes, 1,433 sparse features, 7 classes (as Cora)
  reddit       232,965 nodes, 114 million edges, 602 features, 41 classes
  products     2,449,029 nodes, 124 million edges, 100 features, 47 classes
\b
Examples:
  gcnbatch data synth tox21 -o tox21.h5
  gcnbatch data synth reaction100 -o small.h5 --graphs 5000 --bond-channels
  gcnbatch data synth reddit -o reddit.h5 --scale 0.1 --seed 7
"""


@app.command(epilog=INFO_EXAMPLES)
@command(DescribeOptions)
def info(as_json: Json = False, **options: Any) -> None:
    """Describe a data set.

    Shown are sizes, distributions, channels, labels per task, splits and the origin.

    The file is checked first, as by 'gcnbatch data check'.
    """
    from gcnbatch.api import files
    from gcnbatch.cli.data_info import lines

    description = files.describe(**options)
    print(json.dumps(description.as_dict(), indent=2) if as_json else "\n".join(lines(description)))


@app.command(epilog=CHECK_EXAMPLES)
@command(CheckOptions)
def check(as_json: Json = False, **options: Any) -> None:
    """Check a file against all rules of the format.

    The first error is reported with its position in the file. For molecules, copies in different parts of a split are
    counted.

    Exit code 0 if the file is valid, 2 if not. With --json, the result is on stdout in both cases.
    """
    from gcnbatch.api import files
    from gcnbatch.errors import InputError

    file = options["path"]
    try:
        counts = files.check(**options, say=lambda line: typer.echo(printable(line), err=True))
    except InputError as error:
        if as_json:
            print(json.dumps({"file": str(file), "valid": False, "error": str(error)}, indent=2))
        raise
    if as_json:
        print(json.dumps({"file": str(file), "valid": True, "checked": counts}, indent=2))
        return
    shown = ", ".join(counted(count, name.removesuffix("s"), name) for name, count in counts.items())
    print(f"{file}: valid. Checked structure, types, offsets, index ranges, numbers, labels, ids and splits: {shown}.")


@app.command(epilog=SYNTH_EXAMPLES)
@command(SynthOptions)
def synth(**options: Any) -> None:
    """Generate a data set.

    A GCN can learn its labels, a model of single atoms cannot.

    In the molecules, the bonds determine the labels, while the atoms alone are independent of them. In the networks,
    the neighbours predict the class far better than the node itself. Use these sets for timing and to check that
    training works, not for science.
    """
    from gcnbatch.api import files
    from gcnbatch.cli.text_tables import size
    from gcnbatch.data import synthetic

    preset, scale = options["preset"], options["scale"]
    synthetic.check_options(preset, options["seed"], options.get("graphs"), scale, options["bond_channels"])
    cost = None if preset in synthetic.MANY_GRAPHS else synthetic.forecast(preset, scale)
    if cost is not None and cost.memory > _ANNOUNCED:
        print(
            f"{preset}: {counted(cost.nodes, 'node')}, {counted(cost.edges, 'edge')}; this takes about "
            f"{size(cost.memory)} of memory and "
            f"makes a file of about {size(cost.disk)}. A smaller --scale takes less.",
            file=sys.stderr,
        )
    files.synth(**options, progress=True)
    print(options["out"])
