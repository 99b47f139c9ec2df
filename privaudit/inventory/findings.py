"""What an inventory means, in plain words. One function per subject."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from privaudit.inventory.records import Finding, StochasticCall

if TYPE_CHECKING:
    from torch import Tensor


TRUTH_MISFIT = "loss-at-truth"
"""Of the finding that a step cannot be recomputed."""


def about_randomness(calls: Sequence[StochasticCall]) -> Iterator[Finding]:
    """Dropout that stays on, draws nobody owns, masks that let nothing through."""
    yield from _in_eval([c for c in calls if c.in_eval])
    yield from _hidden([c for c in calls if c.hidden and c.replayable])
    yield from _unreplayable([c for c in calls if not c.replayable])
    for call in calls:
        if call.p == 1.0:
            yield Finding(
                code="drops-everything",
                severity="warning",
                where=call.name,
                title="Nothing passes this layer",
                text=f"{call.kind} with p = 1 sets every value to zero, so no gradient "
                "reaches what lies before it.",
                remedy="Check the rate; this is not a defense but a broken layer.",
            )
        elif call.p is None:
            yield Finding(
                code="noise",
                severity="info",
                where=call.name,
                title="Noise in the forward pass",
                text=f"{call.kind} is added during the step. Whether it protects is "
                "measured, not assumed.",
            )


def _in_eval(calls: list[StochasticCall]) -> Iterator[Finding]:
    if calls:
        yield Finding(
            code="random-in-eval",
            severity="warning",
            where=names_of(calls),
            title="Dropout active in eval mode"
            if any(c.p is not None for c in calls)
            else "Noise active in eval mode",
            text=f"{len(calls)} stochastic call(s) also draw in eval mode: "
            + ", ".join(f"{c.name} ({c.kind}, p = {c.p})" for c in calls[:5])
            + ". Predictions of the deployed model are random.",
            remedy="Pass training=self.training, or use nn.Dropout.",
        )


def _hidden(calls: list[StochasticCall]) -> Iterator[Finding]:
    if calls:
        yield Finding(
            code="hidden-draw",
            severity="info",
            where=names_of(calls),
            title="Random draws inside a fused operator",
            text=f"{len(calls)} draw(s) happen where no layer shows them "
            f"({calls[0].kind}). They were recorded and are replayed exactly.",
        )


def _unreplayable(calls: list[StochasticCall]) -> Iterator[Finding]:
    if calls:
        yield Finding(
            code="cannot-replay",
            severity="warning",
            where=names_of(calls),
            title="Random draws that cannot be replayed",
            text=f"{len(calls)} draw(s) are made inside a kernel that keeps them to "
            f"itself ({calls[0].kind}); checks that need the same draws are void.",
            remedy="Replace the operator by one that takes its randomness from "
            "outside.",
        )


def about_recurrent(modules: Mapping[str, float]) -> Iterator[Finding]:
    """Dropout of a recurrent layer acts between layers, and there is only one.

    Args:
        modules: Rate by name.
    """
    for name, p in modules.items():
        yield Finding(
            code="dropout-without-effect",
            severity="warning",
            where=name,
            title=f"The dropout of {name} has no effect",
            text=f"dropout={p} acts between the layers of a recurrent stack; `{name}` "
            "has one layer, so its dropout has no effect.",
            remedy="Put nn.Dropout behind it, or stack layers.",
        )


def about_eval_mode(*, examined: bool) -> Iterator[Finding]:
    """Say so where nobody looked: "no" would be a guess."""
    if not examined:
        yield Finding(
            code="eval-not-examined",
            severity="info",
            where="eval mode",
            title="Eval mode was not examined",
            text="The model does not run by itself, only inside the training step that "
            "was given, so what it draws in eval mode is not known.",
        )


def about_outside(modules: Sequence[str]) -> Iterator[Finding]:
    """Python's and numpy's generators used in forward."""
    for name in dict.fromkeys(modules):
        yield Finding(
            code="randomness-outside-torch",
            severity="warning",
            where=name,
            title=f"Randomness outside torch in {name}",
            text=f"The output still differs after replay: randomness outside torch in "
            f"`{name}` (Python's random or numpy). It cannot be recorded.",
            remedy="Draw with torch, so that the step can be audited exactly.",
        )


def about_sharing(total: int, trainable: int) -> Iterator[Finding]:
    """Frozen parameters are not sent."""
    if trainable < total:
        yield Finding(
            code="partly-frozen",
            severity="info",
            where="parameters",
            title="Only trainable parameters are shared",
            text=f"{trainable} of {total} values are trainable and sent; the others "
            "are frozen and not part of the gradient.",
        )


def about_unused(names: Sequence[str]) -> Iterator[Finding]:
    """Parameters that took no part in the step."""
    if names:
        yield Finding(
            code="unused-parameters",
            severity="info",
            where=", ".join(names[:3]) + (" …" if len(names) > 3 else ""),
            title="Parameters without a gradient",
            text=f"{len(names)} parameter(s) took no part in this step (no gradient, "
            "unused); they are left out on both sides, by name.",
        )


def about_zero_gradients(
    gradients: Mapping[str, Tensor], weights: Mapping[str, Tensor]
) -> Iterator[Finding]:
    """Gradients of exactly zero are a fact about this batch, not protection.

    Args:
        gradients: What is shared.
        weights: The parameters themselves: a head of zeros lets no gradient through.
    """
    zero = [n for n, g in gradients.items() if not bool(g.any())]
    live = [n for n in gradients if n not in set(zero)]
    if not zero:
        return
    if not live:
        yield Finding(
            code="zero-gradient",
            severity="warning",
            where="all parameters",
            title="The whole gradient is zero",
            text="Every shared value is exactly zero: no information in this gradient. "
            "That is a fact about this batch and these weights; it says nothing about "
            "other batches.",
            remedy="Audit with the weights that will be trained, and other images.",
        )
    elif _is_behind_head(list(gradients), live) and _is_zero(live, weights):
        layers = _layers(live)
        yield Finding(
            code="no-gradient-behind-head",
            severity="warning",
            where=layers[0],
            title="No gradient behind the head",
            text=f"Only {', '.join(live)} has a gradient: the head's weights are zero, "
            "as freshly built models of this kind have them. This is how the first "
            "step looks, not safety; from the next step on everything has a gradient. "
            "In this step only the head's own gradient leaks (its input features).",
            remedy="Audit with the head as it is during training, for example after "
            "nn.init.trunc_normal_(head.weight, std=0.02).",
        )
    else:
        yield from _dead(zero, live)


def _dead(zero: Sequence[str], live: Sequence[str]) -> Iterator[Finding]:
    alive = set(_layers(live))
    for layer in [x for x in _layers(zero) if x not in alive]:
        yield Finding(
            code="dead-layer",
            severity="warning",
            where=layer,
            title=f"The gradient of {layer} is zero",
            text=f"The gradient of {layer} is zero for all samples (dead units). No "
            f"information in this gradient for layer {layer}; the result says nothing "
            "about other batches.",
            remedy="Check the layer: units that never fire do not learn either.",
        )


def _is_behind_head(names: Sequence[str], live: Sequence[str]) -> bool:
    """True when only the last layer has a gradient."""
    return _layers(live) == _layers(names)[-1:]


def _is_zero(names: Sequence[str], weights: Mapping[str, Tensor]) -> bool:
    """True when every matrix among ``names`` holds zeros only."""
    matrices = [weights[n] for n in names if n in weights and weights[n].dim() > 1]
    return bool(matrices) and not any(bool(w.any()) for w in matrices)


def _layers(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(n.rpartition(".")[0] or n for n in names))


def names_of(calls: Sequence[StochasticCall]) -> str:
    """The first three by name, and how many more."""
    listed = [c.name for c in calls]
    return ", ".join(listed[:3]) + (
        f" and {len(listed) - 3} more" if listed[3:] else ""
    )


def truth_does_not_fit(error: float) -> Finding:
    """The step cannot be recomputed from what was recorded of it."""
    return Finding(
        code=TRUTH_MISFIT,
        severity="warning",
        where="preflight",
        title="The client's step cannot be recomputed",
        text=f"With the true images and the recorded masks the gradient differs by "
        f"{error:.1e} (relative) from the one that was sent, so an attack cannot end "
        "at zero. A clean score of this audit would not mean anything.",
        remedy="See the findings on randomness and on wrappers that recompute "
        "activations.",
    )


def labels_from_model() -> Finding:
    """Labels were left out and taken from the model itself."""
    return Finding(
        code="labels-from-model",
        severity="info",
        where="labels",
        title="Labels taken from the model",
        text="No labels were given, so the model's own argmax stands in for them. The "
        "gradient is that of a client whose labels agree with the model.",
        remedy="Pass (images, labels) for the step that clients really make.",
    )


def no_second_derivative(where: str, cause: str) -> Finding:
    """An operator of the model cannot be differentiated twice."""
    return Finding(
        code="no-second-derivative",
        severity="warning",
        where=where,
        title="No second derivative",
        text=f"The gradient of the gradient cannot be computed here: {cause}. Closed "
        "forms do not need it; gradient matching does.",
        remedy="Switch to a differentiable implementation, for example "
        'attn_implementation="eager" (transformers) or TIMM_FUSED_ATTN=0 (timm).',
    )


def wrong_second_derivative(functions: str, apart: float) -> Finding:
    """A hand-written backward pass that cannot be differentiated rightly."""
    return Finding(
        code="wrong-second-derivative",
        severity="warning",
        where=functions,
        title="Wrong second derivative",
        text=f"The second derivative of {functions} is wrong or missing: the attack "
        f"gradient differs from a finite difference by {apart:.1e} (relative). "
        "Gradient matching through it would fail without a word.",
        remedy="Replace the custom function by torch's own, such as F.silu, or write "
        "its backward pass with differentiable operations.",
    )


def reduced_precision(kind: str, floor: float) -> Finding:
    """The client rounds more than float32 does."""
    return Finding(
        code="reduced-precision",
        severity="info",
        where="client's step",
        title="Reduced precision is noise, not a defence",
        text=f"The client's step runs with {kind}. Its gradient is off that of the "
        f"same step in float32 by {floor:.1e} (relative, ‖g − g₃₂‖ / ‖g‖): the noise "
        "floor. Attacks run in float32 on the rounded gradient, and the scores decide: "
        "a match below 1e-4 may be out of reach though the image leaks.",
    )


def no_full_precision(kind: str, cause: str) -> Finding:
    """The step cannot be repeated in float32."""
    return Finding(
        code="no-full-precision",
        severity="warning",
        where="client's step",
        title="Attacks run in reduced precision",
        text=f"The client's step runs with {kind}, and cannot be repeated in float32 "
        f"({cause}). Attacks round as the client does, which can make them weaker; the "
        "noise floor is not known.",
        remedy="Leave casts inside the model to torch.autocast, or pass "
        "model.float() with the client's autocast.",
    )


def loss_scale_divided(scale: float, *, given: bool) -> Finding:
    """The recorded gradient carried a constant factor."""
    how = (
        "as the caller said"
        if given
        else "found by recomputing the gradient at the true images"
    )
    return Finding(
        code="loss-scale",
        severity="info",
        where="update",
        title="A loss scale was divided out",
        text=f"The recorded gradient was multiplied by {scale:g}, {how}: the factor of "
        "a GradScaler, or of a sum in the loss. It was divided out and hides nothing.",
    )


def loss_scale_suspected(ratio: float) -> Finding:
    """The recorded gradient is much larger than such gradients are."""
    return Finding(
        code="loss-scale-suspected",
        severity="warning",
        where="update",
        title="The gradient may still carry a loss scale",
        text=f"The recorded gradient is about {ratio:.0f} times as large as that of a "
        "step on other images. Forms that rely on its size would miss what it shows.",
        remedy="Pass loss_scale= (scaler.get_scale() of the step), or record with "
        "scaler.step(optimizer) inside the context.",
    )
