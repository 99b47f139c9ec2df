"""Models, weights, images and labels, as the command line names them."""

from __future__ import annotations

import os
import pickle
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from privaudit._label_files import load_labels
from privaudit._loading import load_images, load_model, load_weights
from privaudit.errors import ConfigError, NothingToAuditError
from tests.unit.cli_models import mlp, same_but_named

MODELS = Path(__file__).with_name("cli_models.py")


def small() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def test_a_factory_in_a_file_and_in_a_module() -> None:
    assert isinstance(load_model(f"{MODELS}:mlp"), nn.Sequential)
    assert isinstance(load_model("tests.unit.cli_models:mlp"), nn.Sequential)


def test_a_file_finds_its_neighbours_and_the_path_is_put_back(tmp_path: Path) -> None:
    (tmp_path / "layers_beside.py").write_text("from torch.nn import Linear\n")
    (tmp_path / "net_beside.py").write_text(
        "from layers_beside import Linear\nmodel = Linear(2, 2)\n"
    )
    before = list(sys.path)
    assert isinstance(load_model(f"{tmp_path}/net_beside.py:model"), nn.Linear)
    assert sys.path == before


def test_a_module_that_is_missing_inside_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "wants.py").write_text("import not_installed_anywhere\n")
    with pytest.raises(ConfigError, match=r"not_installed_anywhere.*wants.py, line 1"):
        load_model(f"{tmp_path}/wants.py:f")


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth"])
@pytest.mark.parametrize(
    "prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."]
)
def test_weights_with_prefixes(tmp_path: Path, suffix: str, prefix: str) -> None:
    path = tmp_path / f"w{suffix}"
    state = small().state_dict()
    wrapped = {f"{prefix}{k}": v for k, v in state.items()}
    if suffix == ".safetensors":
        save_file(wrapped, path)
    else:
        torch.save({"state_dict": wrapped, "epoch": 3}, path)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    notes = load_weights(model, path)
    assert len(notes) == prefix.count(".")
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])


def test_a_prefix_of_the_models_own_stays(tmp_path: Path) -> None:
    save_file(same_but_named().state_dict(), tmp_path / "w.safetensors")
    assert load_weights(same_but_named(), tmp_path / "w.safetensors") == []


class Code:
    """Unpickling this would run a command."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch executed",)


def test_a_pickle_with_code_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"0.weight": Code()}, "w.pt")
    torch.save(small(), "whole.pt")
    Path("bare.pt").write_bytes(pickle.dumps({"0.weight": Code()}))
    for name in ("w.pt", "whole.pt", "bare.pt"):
        with pytest.raises(ConfigError, match="a pickle with more than weights"):
            load_weights(small(), Path(name))
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "an empty file"),
        (b"<!DOCTYPE html><p>Sign in", "an HTML page of 25 bytes"),
        (b"\n<html>", "an HTML page of 7 bytes"),
        (b"\x00\xff" * 40, "a damaged file of 80 bytes"),
    ],
    ids=["empty", "page", "page after a blank", "noise"],
)
def test_files_that_hold_no_weights(
    tmp_path: Path, suffix: str, data: bytes, what: str
) -> None:
    path = tmp_path / f"w{suffix}"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=what):
        load_weights(small(), path)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_truncated_weights(tmp_path: Path, suffix: str, share: float) -> None:
    path = tmp_path / f"w{suffix}"
    if suffix == ".safetensors":
        save_file(small().state_dict(), path)
    else:
        torch.save(small().state_dict(), path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ConfigError, match="damaged file"):
        load_weights(small(), path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(tmp_path: Path, value: float) -> None:
    state = small().state_dict()
    state["1.running_var"][1] = value
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(ConfigError, match=r"1\.running_var: expected finite"):
        load_weights(small(), tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"0.bias": None}, r"6 that fit; 1 missing \(first: 0.bias\)"),
        ({"head.weight": torch.ones(2)}, r"1 unknown \(first: head.weight\)"),
        ({"0.weight": torch.ones(3, 3)}, r"1 of another shape \(first: 0.weight\)"),
    ],
)
def test_weights_of_another_model(
    tmp_path: Path, change: dict[str, torch.Tensor | None], what: str
) -> None:
    state = {**small().state_dict(), **change}
    save_file(
        {k: v for k, v in state.items() if v is not None}, tmp_path / "w.safetensors"
    )
    model = small()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ConfigError, match=what):
        load_weights(model, tmp_path / "w.safetensors")
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("content", [torch.ones(3), [1, 2], {"a": {"b": 1}}, {"a": 1}])
def test_a_file_without_a_state_dict(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(ConfigError, match="names and tensors"):
        load_weights(small(), tmp_path / "w.pt")


def test_images_come_in_order_of_name(tmp_path: Path) -> None:
    for name in ("b/2.png", "a/3.JPG", "a/1.png", "a/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        if name.endswith("txt"):
            (tmp_path / name).touch()
        else:
            Image.new("RGB", (4, 4)).save(tmp_path / name)
    found = load_images([tmp_path], size=None, mode=None)
    assert [Path(str(f)).name for f in found] == ["1.png", "3.JPG", "2.png"]
    (tmp_path / "none").mkdir()
    with pytest.raises(NothingToAuditError, match="image files"):
        load_images([tmp_path / "none"], size=None, mode=None)
    with pytest.raises(ConfigError, match="a file or folder"):
        load_images([tmp_path / "nowhere"], size=None, mode=None)


def test_sixteen_bits_are_not_cut_off(tmp_path: Path) -> None:
    deep = np.full((8, 8), 40_000, dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    with pytest.raises(ConfigError, match=r"deep.png: expected 8 bits a channel"):
        load_images([tmp_path], size=None, mode="L")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("l.csv", "a.png,3\nb.png,1\n"),
        ("l.csv", "b.png,1\na.png,3\n"),
        ("l.csv", "file,class\na.png,3\nb.png,1\n"),
        ("l.csv", "\ufefffile,class\r\na.png,3\r\nb.png,1\r\n"),
        ("l.csv", 'a,3\n"b",1\n'),
        ("l.csv", "data/a.png,3\ndata/b.png,1\n"),
        ("l.csv", "a.png,3,train\nb.png,1,test\n"),
        ("l.txt", "3\n1\n"),
        ("l.txt", "class\n3\n1\n\n"),
        ("l.json", '{"a.png": 3, "b.png": 1}'),
        ("l.json", '{"b": "1", "a": "3"}'),
        ("l.JSON", "[3, 1]"),
        ("l.json", '[["a.png", 3], ["b.png", 1]]'),
    ],
)
def test_label_files(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    files = [Path("data/a.png"), Path("data/b.png")]
    assert load_labels(tmp_path / name, files) == [3, 1]


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("l.csv", "a.png,3\n", "b.png: expected a class id, got none"),
        ("l.csv", "a.png,3\nb.png,cat\n", "b.png: expected a class id, got 'cat'"),
        ("l.csv", "a.png,cat\nb.png,1\n", "a.png: expected a class id, got 'cat'"),
        ("l.csv", "a.png,3\na.png,2\nb.png,1", "one class id, got 3 and 2"),
        ("l.txt", "3\n", "2 labels, one per image, got 1"),
        ("l.txt", "3\n1\n2\n", "2 labels, one per image, got 3"),
        ("l.txt", "3\n1.5\n", "a class id, got '1.5'"),
        ("l.json", "[3, 1, 2]", "2 labels, one per image, got 3"),
        ("l.json", "{", "CSV, JSON"),
        ("l.json", "7", "2 labels, one per image, got 1"),
        ("l.csv", "", "2 labels, one per image, got 0"),
    ],
)
def test_label_files_that_do_not_fit(
    tmp_path: Path, name: str, text: str, match: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=match):
        load_labels(tmp_path / name, [Path("data/a.png"), Path("data/b.png")])


def test_label_files_in_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_bytes("é.png,3\n".encode("latin-1"))
    with pytest.raises(ConfigError, match="UTF-8"):
        load_labels(tmp_path / "l.csv", [Path("é.png")])


def test_one_name_in_two_folders_needs_its_folder(tmp_path: Path) -> None:
    files = [Path("data/cats/1.png"), Path("data/dogs/1.png")]
    table = tmp_path / "l.csv"
    table.write_text("1.png,0\n")
    with pytest.raises(ConfigError, match="a name that fits one image, got 2 images"):
        load_labels(table, files)
    table.write_text("dogs/1.png,1\ncats/1.png,0\n")
    assert load_labels(table, files) == [0, 1]


def test_accents_written_in_two_ways_are_one_name(tmp_path: Path) -> None:
    table = tmp_path / "l.csv"
    table.write_text(unicodedata.normalize("NFD", "é.png") + ",3\n", encoding="utf-8")
    assert load_labels(table, [Path(unicodedata.normalize("NFC", "é.png"))]) == [3]


@given(st.lists(st.integers(-1, 999), min_size=1, max_size=20), st.randoms())
def test_labels_follow_their_names_in_any_order(
    labels: list[int], random: object
) -> None:
    import tempfile

    files = [Path(f"x/{i}.png") for i in range(len(labels))]
    lines = [f"{i}.png,{label}" for i, label in enumerate(labels)]
    random.shuffle(lines)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "l.csv")
        table.write_text("\n".join(lines))
        assert load_labels(table, files) == labels


def test_prepared_models_of_the_tests_leak_nothing_into_them() -> None:
    assert torch.equal(mlp().state_dict()["1.weight"], mlp().state_dict()["1.weight"])
