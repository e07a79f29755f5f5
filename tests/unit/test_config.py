"""The configuration: every key can be set, every error has its message, the saved copy is equal."""

from __future__ import annotations

import re
import tomllib
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from gcnbatch.config import Config, key_table, keys, resolve
from gcnbatch.config_sections import KipfConfig
from gcnbatch.config_tree import parse_assignment, put, read_toml
from gcnbatch.errors import InputError
from gcnbatch.options import lab, training
from gcnbatch.options.declaration import parameters
from gcnbatch.resources import configs

# A value that is not the default, for every key, as a user types it and as the tree holds it.
OTHER: dict[str, tuple[str, Any]] = {
    "name": ("mine-1.0", "mine-1.0"),
    "seed": ("7", 7),
    "backend": ("cpu", "cpu"),
    "device": ("1", 1),
    "jobs": ("4", 4),
    "parquet": ("true", True),
    "cuda.precision": ("tf32", "tf32"),
    "cuda.spmm": ("swa_coo", "swa_coo"),
    "cuda.resident": ("off", "off"),
    "data.path": ("/some/set.h5", "/some/set.h5"),
    "data.synthetic": ("tox21", "tox21"),
    "data.memory_mb": ("64", 64),
    "molecules.bond_channels": ("true", True),
    "molecules.bond_properties": ("ring", ("ring",)),
    "molecules.atom_features": ("extended86", "extended86"),
    "molecules.positional": ("rw8", "rw8"),
    "molecules.descriptors": ("rdkit2d", "rdkit2d"),
    "molecules.fingerprint": ("morgan", "morgan"),
    "molecules.fingerprint_radius": ("3", 3),
    "molecules.fingerprint_size": ("256", 256),
    "split.kind": ("stratified", "stratified"),
    "split.name": ('"planetoid"', "planetoid"),
    "split.valid": ("0.25", 0.25),
    "split.valid_kind": ("stratified", "stratified"),
    "split.test": ("0", 0.0),
    "split.similarity": ("0.5", 0.5),
    "split.seed": ("3", 3),
    "split.folds": ("5", 5),
    "split.repeats": ("3", 3),
    "split.copies_together": ("true", True),
    "split.cross_fit": ("10", 10),
    "model.kind": ("kipf", "kipf"),
    "model.widths": ("[8, 16, 8]", (8, 16, 8)),
    "model.adjacency": ("stored", "stored"),
    "model.norm": ("layer", "layer"),
    "model.layer_norm_epsilon": ("1e-3", 1e-3),
    "model.batch_norm_momentum": ("1", 1.0),
    "model.batch_norm_epsilon": ("1e-3", 1e-3),
    "model.dropout": ("0.5", 0.5),
    "model.dense": ("32", (32,)),
    "model.readout": ("max", ("max",)),
    "model.ffn": ("true", True),
    "model.virtual_node": ("true", True),
    "model.residual": ("true", True),
    "model.jumping_knowledge": ("cat", "cat"),
    "model.graph_features": ("off", "off"),
    "model.head": ("[4]", (4,)),
    "train.epochs": ("2", 2),
    "train.ensemble": ("10", 10),
    "train.mixture": ("true", True),
    "train.batch_size": ("1", 1),
    "train.eval_batch_size": ("1000000", 1_000_000),
    "train.from_run": ("runs/tox21", "runs/tox21"),
    "train.freeze": ('"conv1, conv2"', ("conv1", "conv2")),
    "train.optimizer": ("sgd", "sgd"),
    "train.learning_rate": ("1", 1.0),
    "train.beta1": ("0", 0.0),
    "train.beta2": ("0.99", 0.99),
    "train.epsilon": ("1e-6", 1e-6),
    "train.momentum": ("0.5", 0.5),
    "train.weight_decay": ("0.01", 0.01),
    "train.l2": ("5e-4", 5e-4),
    "train.l2_layers": ("[1]", (1,)),
    "train.schedule": ("cosine", "cosine"),
    "train.schedule_every": ("4", 4),
    "train.schedule_factor": ("0.1", 0.1),
    "train.schedule_floor": ("1e-5", 1e-5),
    "train.clip_norm": ("5", 5.0),
    "train.patience": ("9", 9),
    "train.min_delta": ("1e-3", 1e-3),
    "train.monitor": ("pr_auc", "pr_auc"),
    "train.class_weights": ("balanced", "balanced"),
    "train.pos_weight": ("[1, 2.5]", (1.0, 2.5)),
    "train.standardize": ("false", False),
    "train.transform": ("log,none", ("log", "none")),
    "train.loss": ("huber", "huber"),
    "train.huber_delta": ("0.5", 0.5),
    "train.bounds": ("one_sided", "one_sided"),
    "train.task_weights": ("[1, 0.5]", (1.0, 0.5)),
    "model.input_dropout": ("false", False),
    "cuda.fast_math": ("true", True),
    "train.level": ("0.8", 0.8),
    "train.sync_batch_norm": ("false", False),
    "train.checkpoint_seconds": ("0", 0.0),
    "train.tensorboard": ("true", True),
}


# What a key stands with.
NEEDED = {
    "train.mixture": {"split": {"cross_fit": 10}},
    "split.name": {"split": {"kind": "predefined"}},
    "split.valid_kind": {"split": {"kind": "predefined"}},
    "model.input_dropout": {"model": {"kind": "kipf"}},
    "train.freeze": {"train": {"from_run": "runs/tox21"}},
}


def assigned(*assignments: str, tree: dict[str, Any] | None = None) -> Config:
    tree = tree or {}
    for text in assignments:
        put(tree, *parse_assignment(text))
    return resolve(tree)


def look_up(config: Config, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("declared", [training.TrainOptions, training.TuneOptions, lab.CompareBackendsOptions])
def test_an_option_that_sets_a_key_names_one_of_the_configuration(declared: type) -> None:
    assert {one.form.key for one in parameters(declared).values() if one.form.key} <= keys().keys()


def test_a_key_that_is_an_option_too_has_its_default_limits_and_help() -> None:
    rows = {key: rest for key, *rest in key_table()}
    assert rows["device"][0::2] == ["0", "GPU, of those that CUDA_VISIBLE_DEVICES shows"]
    assert rows["train.epochs"][0::2] == ["50", "passes over the training rows"]
    of_size = ["2048", "a whole number, at least 16 and at most 65536", "tables: columns of each fingerprint"]
    assert rows["molecules.fingerprint_size"] == of_size


def test_every_key_has_a_test_value() -> None:
    assert set(OTHER) == set(keys())


@pytest.mark.parametrize("key", OTHER)
def test_every_key_is_set_by_an_assignment_and_by_toml_and_survives_saving(key: str) -> None:
    typed, held = OTHER[key]
    needed = NEEDED.get(key, {})
    config = assigned(f"{key}={typed}", tree=deepcopy(needed))
    assert look_up(config, key) == held
    assert type(look_up(config, key)) is type(held)
    assert config != Config()
    *section, last = key.split(".")
    value = typed if re.fullmatch(r"[-\d.e\[\], \"]+|false|true|\".*\"", typed) else f'"{typed}"'
    text = "\n".join([*(f"[{name}]" for name in section), f"{last} = {value}"])
    tree = tomllib.loads(text)
    for name, keys_of in needed.items():
        tree[name] = tree.get(name, {}) | keys_of
    assert resolve(tree) == config
    assert resolve(tomllib.loads(config.to_toml())) == config


def test_the_saved_configuration_has_every_key_of_its_model() -> None:
    for config in (Config(), Config(model=KipfConfig())):
        saved = tomllib.loads(config.to_toml())
        flat = {f"{name}.{key}" for name, section in saved.items() if isinstance(section, dict) for key in section}
        flat |= {name for name, value in saved.items() if not isinstance(value, dict)}
        fields = set(type(config.model).model_fields)
        expected = {key for key in keys() if not key.startswith("model.") or key.removeprefix("model.") in fields}
        assert flat == expected


def test_an_assignment_wins_over_toml() -> None:
    tree = {"train": {"epochs": 3, "batch_size": 7}, "model": {"kind": "kipf"}}
    config = assigned("train.epochs=5", tree=tree)
    assert (config.train.epochs, config.train.batch_size, config.model.kind) == (5, 7, "kipf")


def test_one_number_is_a_list_of_one() -> None:
    config = assigned("model.widths=8", "train.pos_weight=2.5")
    assert (config.model.widths, config.train.pos_weight) == ((8,), (2.5,))
    assert assigned("train.pos_weight=3").train.pos_weight == (3.0,)


def test_the_shipped_configurations_resolve() -> None:
    files = sorted(configs().glob("*.toml"))
    assert files
    for file in files:
        assert resolve(read_toml(file)).name == file.stem


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train.epoch=1", r"train\.epoch: unknown key\. Did you mean 'train\.epochs'\?"),
        ("trian.epochs=1", r"trian: unknown key\. Did you mean 'train'\?"),
        ("model.widhts=[1]", r"model\.widhts: unknown key for model\.kind chemgcn\. Did you mean 'model\.widths'\?"),
        ("train.lr=1", r"train\.lr: unknown key\. Did you mean 'train\.learning_rate'\?"),
        ("zzz=1", r"zzz: unknown key\. Known: backend, cuda"),
        ("model.kind=gcn", r"model\.kind: 'gcn'; expected 'chemgcn' or 'kipf'"),
        ("train.epochs=0", r"train\.epochs: 0; expected a whole number, at least 1 and at most 1000000"),
        ("train.epochs=1.5", r"train\.epochs: 1\.5; expected a whole number"),
        ("train.epochs=true", r"train\.epochs: True; expected a whole number"),
        ("train.epochs=many", r"train\.epochs: 'many'; expected a whole number"),
        ("train.learning_rate=0", r"train\.learning_rate: 0; expected a number, above 0 and at most 100"),
        ("train.learning_rate=nan", r"train\.learning_rate: nan; expected a number, above 0"),
        ("train.clip_norm=-1", r"train\.clip_norm: -1; expected a number, at least 0"),
        ("split.valid=1.0", r"split\.valid: 1\.0; expected a number, at least 0 and below 1"),
        ("seed=-1", r"seed: -1; expected a whole number, at least 0 and at most 9223372036854775807"),
        ("train.schedule=linear", r"train\.schedule: 'linear'; expected 'constant', 'step', 'cosine' or 'plateau'"),
        ("model.widths=[64, 0]", r"model\.widths\.1: 0; expected a whole number, at least 1 and at most 65536"),
        ("model.widths=[]", r"model\.widths: \[\]; expected at least one value"),
        ("model.widths=wide", r"model\.widths: 'wide'; expected a list of numbers"),
        ("model.dense=[8, 9.5]", r"model\.dense\.1: 9\.5; expected a whole number, at least 1 and at most 65536"),
        ("train.pos_weight=[1, 0]", r"train\.pos_weight\.1: 0; expected a number, above 0"),
        ("model.residual=1", r"model\.residual: 1; expected true or false"),
        ("train=5", r"train: 5; expected a table of keys"),
        ("model=5", r"model: 5; expected a table of keys"),
        ("name=a b", r"name: 'a b'; expected letters, digits, '\.', '_' and '-'"),
        ('name=""', r"name: ''; expected at least one character"),
        ("data.path=5", r"data\.path: 5; expected a text"),
        ("split.test=0.95", r"split: valid \+ test must leave rows for training \(sum below 1\)"),
        ("split.folds=1", r"split: folds must be 0 or at least 2"),
        ('data.path="a\\u0000b"', r"data\.path: 'a\\x00b'; expected text in UTF-8 without NUL characters"),
        ('train.from_run="\\u0000"', r"train\.from_run: '\\x00'; expected text in UTF-8 without NUL characters"),
        (f"seed={'9' * 5000}", r"seed: '9{78}…; expected a whole number, at least 0 and at most 9223372036854775807"),
        (f"seed=0x{'f' * 5000}", r"--set: seed: a whole number of more than 64 bits; expected a smaller one"),
        ("model.widths=[9223372036854775808]", r"--set: model\.widths: a whole number of more than 64 bits"),
        (f"name={'x' * 5000}", r"name: 'x{78}…; expected"),
        (f"train.{'x' * 5000}=1", r"configuration: train\.x{73}…: unknown key\. Known: "),
        ("no equals sign", r"--set no equals sign: no '='; expected section\.key=value"),
        ("=5", r"--set =5: no '='"),
    ],
)
def test_a_wrong_assignment_says_what_is_expected(assignment: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        assigned(assignment)


def test_keys_of_the_other_model_are_unknown() -> None:
    with pytest.raises(InputError, match=r"model\.readout: unknown key for model\.kind kipf"):
        assigned("model.kind=kipf", "model.readout=sum")


def test_ranges_follow_the_model() -> None:
    for kind in ("chemgcn", "kipf"):
        with pytest.raises(InputError, match=r"model\.dropout: 1; expected a number, at least 0 and below 1"):
            assigned(f"model.kind={kind}", "model.dropout=1")


def test_contradictions_are_named() -> None:
    with pytest.raises(InputError, match=r"configuration: data\.path and data\.synthetic are both given; keep one"):
        assigned("data.path=a.h5", "data.synthetic=quickstart")
    with pytest.raises(InputError, match=r"split: valid_kind = 'scaffold' needs kind = 'predefined', not 'random'"):
        assigned("split.valid_kind=scaffold")


def test_folds_do_not_need_a_test_share() -> None:
    assert assigned("split.folds=2", "split.valid=0.9", "split.test=0.9").split.folds == 2


@pytest.mark.parametrize(("first", "then"), [("train=5", "train.epochs=2"), ("train.epochs=2", "train.epochs.x=2")])
def test_a_value_is_not_a_section(first: str, then: str) -> None:
    with pytest.raises(InputError, match=r"train.*: \w+ is a value; expected section\.key"):
        assigned(first, then)


def test_a_bare_word_is_text_and_the_rest_is_toml() -> None:
    assert parse_assignment("data.path = a/b.h5") == (("data", "path"), "a/b.h5")
    assert parse_assignment("x=[1, 2]") == (("x",), [1, 2])
    assert parse_assignment("x=a=b") == (("x",), "a=b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"seed = {'9' * 5000}",
            r"c\.toml: a whole number of more than 64 bits; expected smaller ones",
        ),
        (f"seed = 0x{'f' * 5000}", r"c\.toml: seed: a whole number of more than 64 bits; expected a smaller one"),
        ("[train]\nx = [{ y = -9223372036854775809 }]", r"c\.toml: train\.x\.y: a whole number of more than 64 bits"),
    ],
)
def test_whole_numbers_of_more_than_64_bits_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.toml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        read_toml(tmp_path / "c.toml")
    assert len(str(caught.value)) < 400


def test_a_file_that_is_no_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.toml: no such file; expected a TOML configuration\. See configs/"):
        read_toml(tmp_path / "none.toml")
    for content in (b"[train\n", b"a = 1\na = 2\n"):
        (tmp_path / "bad.toml").write_bytes(content)
        with pytest.raises(InputError, match=r"bad\.toml: cannot be read as TOML \(.*\)\. Fix that line\."):
            read_toml(tmp_path / "bad.toml")
    for content in (b"a = " + b"[" * 5000, b".".join([b"a"] * 22) + b" = 1"):
        (tmp_path / "deep.toml").write_bytes(content)
        with pytest.raises(
            InputError, match=r"deep\.toml: tables or lists nested too deep; expected at most 20 levels"
        ):
            read_toml(tmp_path / "deep.toml")
    (tmp_path / "set.h5").write_bytes(b"\x89HDF")
    with pytest.raises(
        InputError, match=r"set\.h5: not text; expected a TOML configuration\. Pass a data set with --data"
    ):
        read_toml(tmp_path / "set.h5")
    with pytest.raises(InputError, match=": is a folder; expected a TOML configuration"):
        read_toml(tmp_path)


def test_the_largest_of_layers_of_different_widths_is_refused() -> None:
    with pytest.raises(InputError, match=r"jumping_knowledge = 'max' needs equal widths, not \[8, 16\]"):
        resolve({"model": {"jumping_knowledge": "max", "widths": [8, 16]}})


def test_a_name_of_a_split_that_is_not_predefined_is_refused() -> None:
    with pytest.raises(InputError, match=r"^configuration: split: name = 'x' needs kind = 'predefined'"):
        assigned("split.kind=scaffold", "split.name=x")
    assert assigned("split.kind=predefined", "split.name=x").split.name == "x"


def test_a_message_names_where_the_key_comes_from() -> None:
    tree = {"train": {"epochs": 0}, "model": {"kind": "kipf", "widths": [0]}}
    with pytest.raises(InputError, match=r"^my\.toml: model\.widths\.0: 0; expected"):
        resolve(tree, "my.toml", [("train", "epochs")])
    with pytest.raises(InputError, match=r"^configuration: model\.widths\.0: 0; expected"):
        resolve(tree, "my.toml", [("model", "widths")])
    with pytest.raises(InputError, match=r"^my\.toml: trian: unknown key"):
        resolve({"trian": {}}, "my.toml", [("train", "epochs")])


@pytest.mark.parametrize(("held", "norm"), [(True, "batch"), (False, "none")])
def test_batch_norm_of_older_files_is_read(held: bool, norm: str) -> None:
    assert resolve({"model": {"batch_norm": held}}) == resolve({"model": {"norm": norm}})
