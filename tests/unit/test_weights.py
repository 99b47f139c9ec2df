"""Pretrained weights: the order of places, digests, and never a connection unasked."""

from __future__ import annotations

import hashlib
import pickle
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from privaudit._weights import Found, Weights, locate, offline, read_state, shown
from privaudit.errors import ConfigError
from privaudit.metrics import METRICS, Dino, Lpips
from privaudit.metrics.dino import BACKBONE
from privaudit.metrics.lpips import BACKBONES
from tests.pretrained import backbone_file, dino_file

NET = Weights(
    "a net", ("net-1.pth", "net.safetensors"), "http://127.0.0.1:9/net-1.pth",
    repos=("someone/net",),
)  # fmt: skip
FLAGS = ("PRIVAUDIT_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@pytest.fixture(autouse=True)
def empty_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No weights, no caches, no flags; a home of its own."""
    for name in ("PRIVAUDIT_WEIGHTS", "PRIVAUDIT_DOWNLOAD", "HF_HUB_CACHE", *FLAGS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every attempt to connect: an error, and noted."""
    noted: list[Any] = []

    def refuse(*args: Any, **kwargs: Any) -> Any:
        noted.append(args)
        raise OSError("no network in this test")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    return noted


def put(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"weights")
    return file


def test_places_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVAUDIT_WEIGHTS", str(tmp_path / "by_env"))
    snapshot = tmp_path / "hf/hub/models--someone--net/snapshots/12ab"
    last_first = [
        put(snapshot / "pytorch_model.bin"),
        put(snapshot / "model.safetensors"),
        put(tmp_path / "torch/hub/checkpoints/net-1.pth"),
        put(tmp_path / "by_env/net.safetensors"),
        put(tmp_path / "by_env/net-1.pth"),
    ]
    for expected in reversed(last_first):
        assert locate(NET).path == expected
        expected.unlink()
    own = put(tmp_path / "own/net-1.pth")
    put(tmp_path / "by_env/net-1.pth")
    assert locate(NET, str(tmp_path / "own")).path == own
    assert locate(NET, "~/own").path == own


def test_absent_says_where_to_put_which_file(calls: list[Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        locate(NET, str(tmp_path / "own"))
    assert str(caught.value) == (
        "weights of a net: expected a file net-1.pth or net.safetensors, got none in "
        "~/own, ~/torch/hub/checkpoints, ~/hf/hub; not fetched since "
        "PRIVAUDIT_DOWNLOAD=1 is not set. Get it from http://127.0.0.1:9/net-1.pth, "
        "put it into a folder and name that folder in PRIVAUDIT_WEIGHTS."
    )
    assert calls == []


@pytest.mark.parametrize("flag", FLAGS)
def test_offline_opens_no_connection(
    flag: str, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVAUDIT_DOWNLOAD", "1")
    monkeypatch.setenv(flag, "1")
    assert offline() == flag
    images = torch.rand(1, 3, 32, 32)
    for metric in (Lpips(), Lpips(net="vgg"), Lpips(net="squeeze"), Dino()):
        note = metric.score(images, images)[0].note
        assert note.startswith(f"{metric.name} is not available: weights of ")
        assert f"not fetched since {flag} is set" in note
    assert calls == []


def test_asked_for_it_tries_and_says_what_failed(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVAUDIT_DOWNLOAD", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    with pytest.raises(ConfigError, match=r"fetching it failed: .*no network in this"):
        locate(NET)
    assert len(calls) == 1, "otherwise the guard of the other tests guards nothing"
    with pytest.raises(ConfigError, match="fetching it failed"):
        locate(NET)
    assert len(calls) == 1, "one try a process"


def test_metrics_without_weights_have_a_reason_and_no_value(calls: list[Any]) -> None:
    images = torch.rand(3, 3, 32, 32)
    for cls in METRICS.values():
        metric = cls()
        reason = metric.unavailable()
        assert bool(reason) == (metric.name in ("lpips", "dino"))
        if reason:
            scores = metric.score(images, images)
            assert [(s.value, s.note) for s in scores] == [(None, reason)] * 3
    assert calls == []


def test_every_published_file_names_its_digest() -> None:
    for net, weights in BACKBONES.items():
        start = weights.names[0].removesuffix(".pth").rpartition("-")[2]
        assert weights.sha256.startswith(start), net
        assert re.fullmatch("[0-9a-f]{64}", weights.sha256)
    assert BACKBONE.sha256 == ""


def test_another_file_under_the_name_is_refused(tmp_path: Path) -> None:
    file = backbone_file("alex", tmp_path)
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    reason = Lpips(weights=str(tmp_path)).unavailable()
    assert f"expected SHA-256 {BACKBONES['alex'].sha256}, got {found}" in reason
    assert "verify=False" in reason
    assert Lpips(weights=str(tmp_path), verify=False).unavailable() == ""


def test_a_digest_is_that_of_the_file_as_it_is_now(tmp_path: Path) -> None:
    file = tmp_path / "net.pth"
    torch.save({"a": torch.zeros(1)}, file)
    right = hashlib.sha256(file.read_bytes()).hexdigest()
    assert read_state(Found.at(file), right)["a"] == 0
    torch.save({"a": torch.ones(1)}, file)
    with pytest.raises(ConfigError, match=f"expected SHA-256 {right}"):
        read_state(Found.at(file), right)


def test_a_network_is_never_half_random(tmp_path: Path) -> None:
    state = torch.load(backbone_file("alex", tmp_path), weights_only=True)
    missing = {k: v for k, v in state.items() if k != "features.3.weight"}
    torch.save(missing, tmp_path / BACKBONES["alex"].names[0])
    reason = Lpips(weights=str(tmp_path), verify=False).unavailable()
    assert "expected all 10 tensors of the network, got 1 missing" in reason
    assert "slice2.3.weight" in reason
    dino_file({"cls_token": torch.zeros(1, 1, 192)}, tmp_path)
    reason = Dino(weights=str(tmp_path)).unavailable()
    assert "expected all 148 tensors of the network, got 148 missing" in reason


class Harmful:
    """What a pickle may do when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("code in a file of weights ran",)


@pytest.mark.parametrize("content", ["code", "noise", "empty", "list"])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_unreadable_files_are_named(content: str, suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"net{suffix}"
    if content == "list":
        torch.save([torch.zeros(1)], file)
    else:
        held = {"code": pickle.dumps(Harmful(), 2), "noise": b"\x07" * 99, "empty": b""}
        file.write_bytes(held[content])
    with pytest.raises(ConfigError, match="expected a file of named tensors"):
        read_state(Found.at(file))


def test_reads_safetensors(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "net.safetensors")
    assert read_state(Found.at(tmp_path / "net.safetensors"))["a"].tolist() == [1, 1]


def test_home_is_not_shown(tmp_path: Path) -> None:
    assert shown(tmp_path / "a" / "b.pth") == "~/a/b.pth"
    assert shown(Path("/somewhere/else")) == "/somewhere/else"


def test_building_leaves_the_worlds_generator_alone(tmp_path: Path) -> None:
    backbone_file("squeeze", tmp_path)
    before = torch.random.get_rng_state()
    Lpips(net="squeeze", weights=str(tmp_path), verify=False).network()
    assert torch.equal(torch.random.get_rng_state(), before)
