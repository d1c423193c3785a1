"""Which answer each evaluation takes from an output, and what it calls invalid."""

from __future__ import annotations

import pytest

from normport.tools.gsm8k.scoring import HARNESS_INVALID, VLLM_INVALID, normalized, score
from normport.tools.gsm8k.scoring import flexible_extract as flexible
from normport.tools.gsm8k.scoring import strict_match as strict
from normport.tools.gsm8k.scoring import vllm_answer as last_digits

NONE = HARNESS_INVALID

EXTRACTED = [
    # text, strict-match, flexible-extract, vLLM's
    ("So she has 5 left.\n#### 5", "5", "5", 5),
    ("He lost money.\n#### -12", "-12", "-12", 12),
    ("#### 1,234,567", "1,234,567", "1,234,567", 1234567),
    ("#### 2.75", "2.75", "2.75", 75),
    ("#### 3.00", "3.00", "3.00", 0),
    ("#### $80", NONE, "$80", 80),
    ("It costs $1,080.50 in all", NONE, "$1,080.50", 50),
    ("#### 18.", "18.", "18.", 18),
    ("The answer is 18.", NONE, "18.", 18),
    ("#### 7\n\n#### 9", "7", "9", 9),
    ("3 + 4 = 7, and 7 * 2 = 14 eggs", NONE, "14", 14),
    ("I do not know", NONE, NONE, VLLM_INVALID),
    ("", NONE, NONE, VLLM_INVALID),
    ("####5", NONE, "5", 5),
    ("#### five", NONE, NONE, VLLM_INVALID),
    ("Well... it depends", NONE, "...", VLLM_INVALID),
    ("a - 3", NONE, "3", 3),
    ("10-3", NONE, "-3", 3),
    ("agent 007", NONE, "007", VLLM_INVALID),
    ("exactly 00", NONE, "00", 0),
    ("٣", NONE, NONE, VLLM_INVALID),
    ("50%", NONE, "50", 50),
    ("1 000", NONE, "000", 0),
    ("#### ,", ",", NONE, VLLM_INVALID),
    # The rules of the patterns, one by one, each worked out by hand.
    ("####  5", NONE, "5", 5),
    ("#### .5", ".5", ".5", 5),
    ("#### 12.50.", "12.50.", "12.50.", 50),
    ("#### --5", NONE, "-5", 5),
    ("#### 1e6", "1", "6", 6),
    ("#### 5[invalid]", "5", "5", 5),
    ("-$5", NONE, "-$5", 5),
    ("$-5", NONE, "-5", 5),
    ("\u22125", NONE, "5", 5),
    ("\u20ac5", NONE, "5", 5),
    ("x ,7", NONE, ",7", 7),
    ("so 7 .", NONE, "7", 7),
    ("so 7 ..", NONE, "..", 7),
    ("18$ or 18$.", NONE, "18$.", 18),
    ("1_000", NONE, "000", 0),
    ("1,2,3", NONE, "1,2,3", 123),
    ("\\boxed{42}", NONE, "42", 42),
    ("5\uff11", NONE, "5", VLLM_INVALID),
    ("#### 3\n#### 4\n", "3", "4", 4),
]


@pytest.mark.parametrize(("text", "by_strict", "by_flexible", "by_vllm"), EXTRACTED)
def test_what_is_taken(text: str, by_strict: str, by_flexible: str, by_vllm: int) -> None:
    assert (strict(text), flexible(text), last_digits(text)) == (by_strict, by_flexible, by_vllm)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,234", "1234"),
        ("$80", "80"),
        ("18.", "18"),
        ("18..", "18."),
        ("2.50", "2.50"),
        ("-5", "-5"),
        ("two lines\nof work\n#### 1,080", "1080"),
        ("x #### 1 #### 2", "2"),
        ("####  5", " 5"),
        ("####5", "####5"),
        # In this order: what the last pattern removes may only then stand at the end.
        ("5.,$", "5"),
        ("5. ", "5. "),
        ("#### 18.\n", "18\n"),
        ("1.\n2.", "1.\n2"),
        ("#,### 5", "5"),
        ("ABC", "abc"),
        ("[invalid]", "[invalid]"),
    ],
)
def test_what_is_compared(text: str, expected: str) -> None:
    assert normalized(text) == expected


@pytest.mark.parametrize(
    ("output", "reference", "verdicts"),
    [
        ("#### 1,080", "work\n#### 1080", ("correct", "correct", "correct")),
        ("so $1080.", "work\n#### 1,080", ("invalid", "correct", "correct")),
        # Equal numbers, different strings: the harness compares strings.
        ("#### 18.00", "#### 18", ("wrong", "wrong", "wrong")),
        # vLLM's evaluation does not see the sign.
        ("#### 5", "#### -5", ("wrong", "wrong", "correct")),
        ("#### -5", "#### -5", ("correct", "correct", "correct")),
        ("#### 7 and later 9", "#### 7", ("correct", "wrong", "wrong")),
        ("none", "#### 7", ("invalid", "invalid", "invalid")),
        ("", "#### 7", ("invalid", "invalid", "invalid")),
        ("#### 1,2", "#### 12", ("correct", "correct", "correct")),
        ("#### 5..", "#### 5", ("wrong", "wrong", "correct")),
        ("#### -$5", "#### -5", ("invalid", "correct", "correct")),
        ("#### 5", "#### $5.", ("correct", "correct", "correct")),
        # vLLM's evaluation keeps what follows the point on both sides.
        ("#### 1.50", "#### 2.50", ("wrong", "wrong", "correct")),
        # A run of periods is a number to the pattern, so it is wrong and not invalid.
        ("hm...", "#### 7", ("invalid", "wrong", "invalid")),
    ],
)
def test_verdicts(output: str, reference: str, verdicts: tuple[str, str, str]) -> None:
    scored = score(output, reference)
    assert list(scored) == ["strict-match", "flexible-extract", "vllm"]
    assert tuple(each.verdict for each in scored.values()) == verdicts
