"""An audit makes no network call."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import torch

from privaudit import Auditor, Budget


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> list[Any]:
    """Offline, an empty cache, and every attempt to connect an error."""
    calls: list[Any] = []

    def refuse(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        raise OSError("no network in this test")

    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    for name in ("HF_HOME", "TORCH_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    return calls


def test_the_guard_guards(no_network: list[Any]) -> None:
    with pytest.raises(OSError, match="no network"):
        socket.create_connection(("localhost", 9))
    with socket.socket() as s, pytest.raises(OSError, match="no network"):
        s.connect(("127.0.0.1", 9))
    assert len(no_network) == 2


def auditor() -> Auditor:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=5)
    budget = Budget(seconds=20, iterations=1, restarts=1)
    return Auditor(model, budget=budget, attacks=["closed_form"])


def test_case_19_an_inventory_without_a_hub(no_network: list[Any]) -> None:
    # Without a sample, so that the shipped photographs are read as well.
    found = auditor().inventory()
    assert no_network == []
    assert found.input_shape == [3, 224, 224]
    assert found.census


@pytest.mark.slow
def test_case_19_a_full_audit_without_a_hub(no_network: list[Any]) -> None:
    result = auditor().audit(torch.rand(1, 3, 224, 224))
    assert no_network == []
    assert result.record.preflight.loss_at_truth == pytest.approx(0, abs=1e-4)
