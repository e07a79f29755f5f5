"""The space of a search: what a file may say, and what the configuration must take."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from gcnbatch.config import Config, resolve
from gcnbatch.config_tree import read_toml
from gcnbatch.errors import InputError
from gcnbatch.tuning.space import DEFAULT, Space, configured, read_space

BASE = resolve({"data": {"path": "set.h5"}})


class Recorded:
    """A trial that takes the highest value or the last choice, and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        self.asked[name] = list(choices)
        return choices[-1]

    def suggest_int(self, name: str, low: int, high: int, *, step: int, log: bool) -> int:
        self.asked[name] = ("int", low, high, step, log)
        return high

    def suggest_float(self, name: str, low: float, high: float, *, step: float | None, log: bool) -> float:
        self.asked[name] = ("float", low, high, step, log)
        return high


def read(text: str, base: Config = BASE) -> Space:
    return read_space(tomllib.loads(text), base, "space.toml")


def suggested(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    trial: Any = Recorded()
    return read(text).suggest(trial), trial.asked


def test_ranges_have_the_type_of_their_key() -> None:
    values, asked = suggested(
        """
        [train]
        learning_rate = { low = 1e-4, high = 1e-1, log = true }
        l2 = { low = 0, high = 1 }
        batch_size = { low = 10, high = 50, step = 10 }
        [model]
        dropout = { low = 0.0, high = 0.4, step = 0.2 }
        """
    )
    assert asked == {
        "train.learning_rate": ("float", 1e-4, 1e-1, None, True),
        "train.l2": ("float", 0.0, 1.0, None, False),
        "train.batch_size": ("int", 10, 50, 10, False),
        "model.dropout": ("float", 0.0, 0.4, 0.2, False),
    }
    assert configured(BASE, values).train.batch_size == 50


def test_choices_may_be_lists_and_lists_of_equal_values_have_a_length() -> None:
    values, asked = suggested(
        """
        [model]
        head = { choices = [[], [16], [32, 16]] }
        widths = { choices = [16, 64], repeat = { low = 1, high = 3 } }
        readout = { choices = ["sum", "max"] }
        """
    )
    assert asked == {
        "model.head": ["[]", "[16]", "[32, 16]"],
        "model.widths": [16, 64],
        "model.widths.repeat": ("int", 1, 3, 1, False),
        "model.readout": ["sum", "max"],
    }
    model = configured(BASE, values).model
    assert (model.head, model.widths, model.readout) == ((32, 16), (64, 64, 64), ("max",))  # type: ignore[union-attr]


def test_a_search_starts_at_the_values_of_the_base_that_the_space_holds() -> None:
    space = read(
        """
        seed = { low = 0, high = 9 }
        [model]
        widths = { choices = [16, 64], repeat = { low = 1, high = 3 } }
        head = { choices = [[], [16]] }
        readout = { choices = [["sum", "max"], "sum"] }
        dropout = { low = 0.0, high = 0.3, step = 0.1 }
        [train]
        learning_rate = { low = 1e-2, high = 1e-1, log = true }
        """
    )
    values: dict[str, Any] = {"seed": 0, "model.widths": 64, "model.widths.repeat": 2, "model.head": "[]"}
    assert space.start(BASE) == {**values, "model.readout": "sum", "model.dropout": 0.0}  # not the rate, 1e-3
    text = {"model": {"widths": [16, 64], "head": [8], "readout": ["sum", "max"], "dropout": 0.25}}
    assert space.start(resolve({**text, "seed": 10})) == {"model.readout": '["sum", "max"]'}


def test_what_keeps_shapes_is_not_part_of_the_architecture() -> None:
    trial: Any = Recorded()
    space = read_space(read_toml(DEFAULT), BASE, "default space")
    space.suggest(trial)
    names = {"model.widths", "model.widths.repeat", "model.readout", "train.batch_size"}
    assert set(space.architecture(dict.fromkeys(trial.asked, 0))) == names
    assert set(trial.asked) - names == {
        *("model.dropout", "train.learning_rate", "train.schedule", "train.weight_decay"),
    }


def test_the_default_space_suits_both_models() -> None:
    kipf = resolve({"model": {"kind": "kipf"}})
    found = {dimension.key for dimension in read_space(read_toml(DEFAULT), kipf, "", known_only=True).dimensions}
    assert "model.readout" not in found
    assert {"model.widths", "model.dropout", "train.learning_rate"} <= found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "space.toml: no key to search; expected section.key ="),
        ("seed = 3", r"space\.toml: seed: 3; expected \{ low = …, high = … \} or \{ choices = \[…\] \}"),
        ("[train]\nlr = { low = 1e-4, high = 1 }", r"space\.toml: train\.lr: unknown key\. Did you mean 'train\.learn"),
        ("[model]\nwidht = { choices = [[3]] }", r"space\.toml: model\.widht: unknown key for model\.kind chemgcn"),
        ("[train]\nlearning_rate = { low = 0, high = 1 }", r"train\.learning_rate: 0\.?0?; expected a number, above 0"),
        ("[train]\nl2 = { low = 0.3, high = 0.1 }", r"train\.l2: an empty range, 0\.3 to 0\.1; expected low at most"),
        ("[train]\nl2 = { low = 0.3 }", r"train\.l2: no 'high'; expected low and high, or choices"),
        ("[train]\nl2 = { low = 0, high = 1, log = true }", r"train\.l2\.low: 0 on a logarithmic scale"),
        ("[train]\nl2 = { low = 0, high = 1, log = 1 }", r"train\.l2\.log: 1; expected true or false"),
        ("[train]\nl2 = { low = 0, high = 1, step = 0 }", r"train\.l2\.step: 0; expected a number above 0"),
        ("[train]\nl2 = { low = '0', high = 1 }", r"train\.l2\.low: '0'; expected a finite number"),
        ("[train]\nl2 = { low = 0, high = 1, steps = 2 }", r"train\.l2\.steps: unknown key\. Did you mean 'step'\?"),
        (
            "[model]\nreadout = { choices = [] }",
            r"model\.readout\.choices: \[\]; expected a list of at least one value",
        ),
        ("[model]\nreadout = { choices = ['sum', 'sum'] }", r"choices: \['sum', 'sum'\]; expected different values"),
        ("[model]\nreadout = { choices = ['sun'] }", r"model\.readout: 'sun'; expected 'sum', 'mean' or 'max'"),
        ("[model]\nwidths = { choices = [8], repeat = 2 }", r"widths\.repeat: 2; expected \{ low = 1, high = … \}"),
        (
            "[model]\nwidths = { choices = [8], repeat = { low = 1.5, high = 2 } }",
            r"widths\.repeat: 1\.5; expected whole numbers from 1 to 4096",
        ),
        (
            "[model]\nwidths = { choices = [8], repeat = { low = 0, high = 2 } }",
            r"widths\.repeat: 0; expected whole numbers",
        ),
        (
            "[model]\nwidths = { choices = [8], repeat = { low = 1, high = 1000000000 } }",
            r"widths\.repeat: 1000000000; e",
        ),
        ("[model]\nwidths = { choices = [8], repeat = { choices = ['1'] } }", r"widths\.repeat: '1'; expected whole"),
        (f"[train]\n{'x' * 5000} = 1", r"space\.toml: train\.x{79}…: unknown key"),
        (f"[train]\nl2 = {{ {'x' * 5000} = 1, low = 0 }}", r"space\.toml: train\.l2\.x{79}…: unknown key"),
        ("[train]\nl2 = { low = 0, high = inf }", r"train\.l2\.high: inf; expected a finite number"),
        ("[train]\nl2 = { low = nan, high = 1 }", r"train\.l2\.low: nan; expected a finite number"),
        (
            "[split]\nvalid = { low = 0.1, high = 0.2 }",
            r"split\.valid: cannot be searched; expected a key of \[model\]",
        ),
        ("[train]\nmonitor = { choices = ['loss'] }", r"train\.monitor: cannot be searched"),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(text)
