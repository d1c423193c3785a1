"""Diffs on the page say what the patches say, line for line."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from review_series import HOSTILE, ROOT

from normport.tools.diffs import git_diff
from normport.tools.errors import UserError
from normport.tools.mailbox import diff_of
from normport.tools.review.diffs import FileDiff, Line, read_diff
from normport.tools.tree import FileChange

PATCHES = sorted((ROOT / "patches").rglob("*.patch"))


def one(before: str, after: str, path: str = "x.py") -> FileDiff:
    return read_diff(git_diff([FileChange(path, before.encode(), after.encode())]), "x")[0]


def plain(line: Line) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", str(line.html)))


def marked(line: Line) -> str:
    found = re.findall("<mark>(.*?)</mark>", str(line.html))
    return html.unescape("".join(found))


@pytest.mark.parametrize("patch", PATCHES, ids=lambda p: f"{p.parts[-2]}-{p.stem}")
def test_rows_are_the_lines_of_the_patch(patch: Path) -> None:
    diff = diff_of(patch.read_bytes())
    wanted = [line for line in diff.decode().split("\n") if line[:1] in ("+", "-", " ", "@")]
    wanted = [line for line in wanted if not line.startswith(("+++ ", "--- "))]
    found = []
    for file in read_diff(diff, patch.name):
        for hunk in file.hunks:
            found.append(hunk.title)
            found += [line.mark + plain(line) for line in hunk.lines]
            assert [line.text for line in hunk.lines] == [plain(line) for line in hunk.lines]
            # Both columns hold each line once, in order.
            for side in (0, 1):
                column = [pair[side] for pair in hunk.pairs if pair[side] is not None]
                other = "added" if side == 0 else "removed"
                assert column == [line for line in hunk.lines if line.kind != other]
    assert found == wanted


def test_only_the_words_that_changed_are_marked() -> None:
    before = "class A:\n    n = RMSNorm(\n        size, eps=e, dtype=torch.float32\n    )\n"
    after = "class A:\n    n = RMSNorm(size, eps=e)\n"
    lines = one(before, after).hunks[0].lines
    assert [marked(line) for line in lines if line.kind == "removed"] == [
        "",
        ", dtype=torch.float32",
        "",
    ]
    assert [marked(line) for line in lines if line.kind == "added"] == [""]


def test_lines_that_have_nothing_in_common_are_not_marked() -> None:
    lines = one("a = first(1)\n", "while True: pass\n").hunks[0].lines
    assert [marked(line) for line in lines] == ["", ""]


def test_the_text_of_a_docstring_that_began_above_is_no_code() -> None:
    text = 'def f():\n    """One.\n' + "\n".join(f"    for line {n}" for n in range(9))
    before = text + '\n    """\n    return None\n'
    lines = one(before, before.replace("for line 8", "for line nine")).hunks[0].lines
    words = {line.text.strip(): str(line.html) for line in lines}
    assert 'class="k"' not in words["for line 7"]
    assert 'class="k"' in words["return None"]


def test_text_that_would_be_markup_is_text() -> None:
    line = one("x = 1\n", f"x = {HOSTILE!r}\n").hunks[0].lines[-1]
    assert plain(line) == f"x = {HOSTILE!r}"
    assert re.findall(r"<(/?\w+)", str(line.html)).count("script") == 0


def test_what_a_browser_would_hide_is_spelled_out() -> None:
    content = b"a = '\x00\xff\x0c'\r\nb = '\xe2\x80\xae'  # \xe2\x81\xa6\n"
    file = read_diff(git_diff([FileChange("x.py", b"a = 1\n", content)]), "x")[0]
    added = [line.text for line in file.hunks[0].lines if line.kind == "added"]
    assert added == [
        "a = '⟦U+0000⟧⟦byte FF⟧⟦U+000C⟧'⟦U+000D⟧",
        "b = '⟦U+202E⟧'  # ⟦U+2066⟧",
    ]


def test_a_file_without_a_last_line_feed() -> None:
    lines = one("a\n", "a").hunks[0].lines
    assert [(line.mark, line.text, line.unterminated) for line in lines] == [
        ("-", "a", False),
        ("+", "a", True),
    ]


def test_what_is_no_diff_is_an_error() -> None:
    with pytest.raises(UserError, match=r"^evil\.patch holds no readable diff"):
        read_diff(b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n a\n", "evil.patch")
