"""The cell store: whole or not there, never another's, whatever happens in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit.errors import ConfigError, ReportError
from privaudit.study import CellKey, Store
from privaudit.study.keys import ARRAYS_FILE, RECORD_FILE, Values
from tests.unit.command import environment


def key(**changed: Any) -> CellKey:
    fields = {"kind": "test", "version": "1", "model": "m", "data": "d"}
    settings = {"victim": 3, "p": 0.5, "nested": {"b": [1, 2], "a": None}}
    return CellKey(**{**fields, "settings": settings, **changed})


def arrays() -> dict[str, Any]:
    return {"image": np.arange(12, dtype=np.float32).reshape(3, 4) / 7}


def unfinished(store: Store) -> list[str]:
    return [p.name for p in (store.folder / "cells").iterdir() if p.name[0] == "."]


def test_a_cell_comes_back_bit_by_bit(tmp_path: Path) -> None:
    values: Values = {"ssim": 0.1 + 0.2, "state": "exact", "none": None}
    Store(tmp_path).put(key(), values, arrays())
    cell = Store(tmp_path).get(key())
    assert cell is not None
    assert cell.values == values
    assert cell.arrays()["image"].tobytes() == arrays()["image"].tobytes()
    assert (cell.folder.stat().st_mode & 0o777) == 0o700
    assert ((cell.folder / ARRAYS_FILE).stat().st_mode & 0o777) == 0o600


def test_the_digest_is_stable_and_knows_every_field() -> None:
    same = {"nested": {"a": None, "b": [1, 2]}, "p": 0.5, "victim": 3}
    assert key(settings=same).digest == key().digest
    # Fixed for good: another spelling of keys would orphan every store there is.
    assert key().digest == DIGEST
    others = [
        key(kind="other"), key(version="2"), key(model="n"), key(data="e"),
        key(settings={**same, "victim": 4}), key(settings={**same, "more": 1}),
    ]  # fmt: skip
    assert len({k.digest for k in [key(), *others]}) == 7


DIGEST = "3dc466dfb81e972c3527ebdaa2b05318a41b6461ef3816af23b05a299e30f4fb"


def test_a_finished_cell_is_not_computed_again(tmp_path: Path) -> None:
    store, made = Store(tmp_path), []

    def make() -> tuple[dict[str, Any], dict[str, Any]]:
        made.append(1)
        return {"n": len(made)}, {}

    assert [store.once(key(), make).values["n"] for _ in range(3)] == [1, 1, 1]
    assert store.put(key(), {"n": 9}).values == {"n": 1}, "the first one stays"
    assert len(made) == 1


@pytest.mark.parametrize("broken_at", range(4))
def test_a_crash_while_writing_leaves_no_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken_at: int
) -> None:
    """Each rename may be the last thing the process did: three there are."""
    store, real, calls = Store(tmp_path), os.replace, []

    def replace(source: Any, target: Any) -> None:
        calls.append(target)
        if len(calls) == broken_at + 1:
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        if broken_at == 3:
            store.put(key(), {"n": 1}, arrays())
        else:
            with pytest.raises(KeyboardInterrupt):
                store.put(key(), {"n": 1}, arrays())
    assert len(calls) == min(broken_at + 1, 3)
    assert (store.get(key()) is not None) == (broken_at == 3)
    assert unfinished(store) == []
    assert store.put(key(), {"n": 2}).values == {"n": 1 if broken_at == 3 else 2}


def test_a_full_disk_is_an_error_that_names_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    store = Store(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(ReportError, match=r"No space left on device \(.*free\)"):
            store.put(key(), {})
    assert store.cells() == []
    assert unfinished(store) == []


KILLED = """
import sys, numpy as np
from privaudit.study import CellKey, Store
store = Store(sys.argv[1])
print("ready", flush=True)
for n in range(100_000):
    key = CellKey(kind="k", version="1", model="m", data="d", settings={"n": n})
    store.put(key, {"n": n}, {"a": np.full(50_000, n)})
"""


def test_kill_9_leaves_only_whole_cells(tmp_path: Path) -> None:
    for number in range(3):
        command = [sys.executable, "-c", KILLED, str(tmp_path)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment()
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.15 + 0.07 * number)
            process.send_signal(signal.SIGKILL)
    said: list[str] = []
    cells = Store(tmp_path, said.append).cells()
    assert said == [], "a half cell was taken for one"
    assert len(cells) > 3
    for cell in cells:
        assert (cell.arrays()["a"] == cell.values["n"]).all()


Damage = Callable[[bytes], bytes]
DAMAGES: dict[str, tuple[str, Damage | None, str]] = {
    "record cut": (RECORD_FILE, lambda d: d[: len(d) // 2], "cut or was changed"),
    "record empty": (RECORD_FILE, lambda d: d[:0], "cut or was changed"),
    "record a list": (RECORD_FILE, lambda d: b"[]" + d[:0], "no record"),
    "number changed": (RECORD_FILE, lambda d: d.replace(b"0.25", b"0.75"), "changed"),
    "arrays cut": (ARRAYS_FILE, lambda d: d[: len(d) // 2], "cut or was changed"),
    "other format": (RECORD_FILE, lambda d: d.replace(b'format": 1', b'format": 2'),
                     "format is 2"),
    "record gone": (RECORD_FILE, None, "is missing"),
    "arrays gone": (ARRAYS_FILE, None, "cut or was changed"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_cell_is_said_and_computed_again(tmp_path: Path, name: str) -> None:
    file, damage, said_of_it = DAMAGES[name]
    place = Store(tmp_path).put(key(), {"ssim": 0.25}, arrays()).folder / file
    place.write_bytes(damage(place.read_bytes())) if damage else place.unlink()
    said: list[str] = []
    store = Store(tmp_path, said.append)
    assert store.get(key()) is None
    assert len(said) == 1
    assert said_of_it in said[0]
    assert "not finished" in said[0]
    assert store.once(key(), lambda: ({"ssim": 0.5}, {})).values == {"ssim": 0.5}
    assert len(said) == 1


def test_a_cell_under_a_wrong_name_is_not_taken_for_ours(tmp_path: Path) -> None:
    said: list[str] = []
    store = Store(tmp_path, said.append)
    stranger = store.put(key(version="0"), {"n": 1}).folder
    stranger.rename(stranger.with_name(key().digest))
    assert store.get(key()) is None
    assert "another cell" in said[0]
    assert store.cells() == []


def test_cells_are_listed_by_kind_and_merged_without_loss(tmp_path: Path) -> None:
    one, two = Store(tmp_path / "1"), Store(tmp_path / "2")
    one.put(key(), {"by": "one"})
    two.put(key(), {"by": "two"})
    two.put(key(kind="other"), {"by": "two"}, arrays())
    assert one.merge(two) == 1
    assert one.merge(two) == 0
    by_kind = {c.key.kind: c.values["by"] for c in one.cells()}
    assert by_kind == {"test": "one", "other": "two"}
    assert [c.key.kind for c in one.cells("other")] == ["other"]
    assert one.cells("other")[0].arrays()["image"].shape == (3, 4)


def test_only_old_leftovers_are_removed(tmp_path: Path) -> None:
    for name, age in (("old", 2 * 86_400), ("new", 5)):
        place = tmp_path / "cells" / f".unfinished-{name}"
        place.mkdir(parents=True)
        os.utime(place, (time.time() - age,) * 2)
    assert unfinished(Store(tmp_path)) == [".unfinished-new"]


def test_what_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="finite numbers"):
        Store(tmp_path).put(key(), {"loss": float("nan")})
    assert Store(tmp_path).cells() == []


def test_differences_name_what_differs() -> None:
    other = key(model="n", settings={**key().settings, "nested": {"a": 1, "b": [1, 2]}})
    assert key().differences(other) == [
        "model: 'n' there, 'm' here",
        "settings.nested.a: 1 there, None here",
    ]
    assert key().differences(key()) == []
    assert json.loads(key().model_dump_json())["kind"] == "test"
