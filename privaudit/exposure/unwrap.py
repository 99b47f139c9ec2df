"""From what a training script holds to the module whose gradient a client shares."""

from __future__ import annotations

from torch import nn

from privaudit.errors import UnsupportedModelError
from privaudit.inventory.records import Finding
from privaudit.tape import readable

_SHARDED = ("FullyShardedDataParallel", "FSDPModule")


def unwrap(given: object) -> tuple[nn.Module, list[Finding]]:
    """Take compile and data-parallel wrappers off, with a note for each.

    Raises:
        UnsupportedModelError: Not an ``nn.Module``, a ScriptModule, or shards.
    """
    if not isinstance(given, nn.Module):
        raise UnsupportedModelError(
            "Auditor.model",
            expected="an nn.Module",
            got=type(given).__name__,
            hint="Pass the module itself, not its class or its state_dict.",
        )
    model: nn.Module = given
    findings: list[Finding] = []
    while True:
        _refuse(model)
        original = getattr(model, "_orig_mod", None)
        if isinstance(original, nn.Module):
            model = original
            findings.append(_compiled())
        elif isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            findings.append(_parallel(type(model).__name__))
            model = model.module
        else:
            _refuse_several_devices(model)
            inside = compiled_parts(model)
            return model, findings + ([_compiled(inside)] if inside else [])


def compiled_parts(model: nn.Module) -> list[str]:
    """Names of the modules that are compiled, or hold or are a compiled function."""
    return [
        readable(name) or type(model).__name__
        for name, module in model.named_modules()
        if _is_compiled(module)
    ]


def _is_compiled(module: nn.Module) -> bool:
    if getattr(module, "_compiled_call_impl", None) is not None:
        return True
    held = [*vars(module).values(), *vars(type(module)).values()]
    return isinstance(module._modules.get("_orig_mod"), nn.Module) or any(
        hasattr(v, "_torchdynamo_orig_callable") for v in held if callable(v)
    )


def _refuse_several_devices(model: nn.Module) -> None:
    """One device holds the whole model, and holds its values."""
    counts: dict[str, int] = {}
    for parameter in model.parameters():
        device = str(parameter.device)
        counts[device] = counts.get(device, 0) + parameter.numel()
    if len(counts) <= 1 and "meta" not in counts:
        return
    listed = ", ".join(f"{device}: {count}" for device, count in counts.items())
    raise UnsupportedModelError(
        type(model).__name__,
        expected="all parameters on one device, with values",
        got=f"parameters per device {listed}",
        hint="Move the model to one device first (model.to(device)); parameters on "
        "`meta` or offloaded ones have to be loaded.",
    )


def _refuse(model: nn.Module) -> None:
    import torch

    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedModelError(
            "Auditor.model",
            expected="a Python nn.Module",
            got="a ScriptModule",
            hint="Pass the Python module that was scripted.",
        )
    for name, module in model.named_modules():
        classes = {c.__name__ for c in type(module).__mro__}
        if classes & set(_SHARDED):
            raise _sharded(name or type(model).__name__)
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise UnsupportedModelError(
                readable(name),
                expected="weights",
                got="a lazy parameter that has none yet",
                hint="Run one forward pass first, and load the weights that will be "
                "trained.",
            )
        if type(parameter).__name__ in ("DTensor", "ShardedTensor", "FlatParameter"):
            raise _sharded(name)


def _sharded(where: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        where,
        expected="whole parameters",
        got="parameters that are shards (FSDP)",
        hint="Gather them first, for example by loading a full state_dict into the "
        "plain module.",
    )


def _compiled(inside: list[str] | None = None) -> Finding:
    return Finding(
        code="compiled",
        severity="info",
        where="torch.compile" if inside is None else ", ".join(inside[:3]),
        title="Audited without torch.compile",
        text="A compiled graph has no second derivative, so the original code was "
        "audited. Compiled training may draw other dropout masks than eager "
        "training for the same seed.",
    )


def _parallel(name: str) -> Finding:
    return Finding(
        code="data-parallel",
        severity="info",
        where=name,
        title=f"Audited the local module of {name}",
        text="Averaging the gradient over ranks would reduce the leak and is not "
        "modelled: what is audited is the gradient of one client.",
    )
