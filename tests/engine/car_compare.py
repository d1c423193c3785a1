"""Whether two runs of the engine generated the same, up to what rounding explains."""

from __future__ import annotations

import math
from typing import Any

from car_engine import VOCABULARY

LOGIT_STEP = 2**-6
"""Between two numbers of bfloat16 from 2 to 4; the leading logit lies below 4."""
LOGPROB_BOUND = 2 * LOGIT_STEP
"""One step for the rounding of the logit itself, which can fall the other way, and one for all that
reaches it from the hidden states (docs/car-rmsnorm.md has the estimate)."""

Outputs = list[dict[str, Any]]
"""One entry per prompt: ``tokens``, and per token ``logprobs`` by token."""


def difference(on: Outputs, off: Outputs) -> str | None:
    """The first step at which two runs differ beyond rounding; None if they do not."""
    for prompt, (one, other) in enumerate(zip(on, off, strict=True)):
        if one["tokens"] != other["tokens"]:
            return f"prompt {prompt}: tokens {one['tokens']} and {other['tokens']}"
        steps = zip(one["logprobs"], other["logprobs"], one["tokens"], strict=True)
        for step, (a, b, token) in enumerate(steps):
            apart = abs(a[str(token)] - b[str(token)])
            if not apart <= LOGPROB_BOUND:
                return f"prompt {prompt}, step {step}: logprobs of {token} are {apart} apart"
    return None


def check_that_the_bound_says_something(outputs: Outputs) -> None:
    """Fails where the model leaves a token to a rounding, or computes less than the bound."""
    leading = []
    for run in outputs:
        for step in run["logprobs"]:
            first, second = sorted(step.values(), reverse=True)[:2]
            assert first - second > 2 * LOGPROB_BOUND, "the model leaves the token to a rounding"
            leading.append(first)
    # About the largest logit: the others lie around 0, so the whole sum is about the vocabulary's.
    assert max(leading) + math.log(VOCABULARY) < 4, (
        "the step of its rounding is larger than assumed"
    )
    # What the logprobs are depends on the context by much more than the bound.
    assert max(leading) - min(leading) > 20 * LOGPROB_BOUND
    assert len({token for run in outputs for token in run["tokens"]}) > 20
