"""``# normport: ignore[CODE]``: what it keeps out, where it may stand, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_sources import MODEL, PLAIN, REFUSED, Command

from normport.codemods.model import Site
from normport.codemods.suppressions import Suppressions
from normport.tools import judge
from normport.tools.proof import Equivalence

FIRST = "self.first = OffsetNorm(config.hidden_size, eps=config.rms_norm_eps)"
WRITE = ("rewrite", "--no-proof", "--allow-unproven", "--write")


def with_comment(comment: str, source: str = MODEL) -> str:
    return source.replace(FIRST, f"{FIRST}  {comment}")


def warnings(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("warning: ")]


@pytest.mark.parametrize(
    "comment",
    [
        "# normport: ignore",
        "# normport: ignore[NP101]",
        "# normport:ignore[ np101 ]",
        "# normport: ignore[NP1]",
        "# normport: ignore[NP10, NP101]",
        "# normport: ignore[np]",
        "# normport: ignore[ALL]",
        "# normport: ignore[NP101]  # because of the kernel",
        "# normport: ignore because of the kernel",
        "# noqa: E501  # normport: ignore[NP101]",
        "# Normport: Ignore[np101]",
        "# NORMPORT : IGNORE",
    ],
)
def test_kept_out(folder: Path, normport: Command, comment: str) -> None:
    (folder / "model.py").write_text(with_comment(comment))
    result = normport("scan", "--no-proof", "--output-format=json", ".")
    assert [finding["line"] for finding in result.json["findings"]] == [23]
    assert result.json["summary"]["ignored"] == 1
    assert warnings(result.err) == []
    assert "1 ignored by comments." in result.err


def test_not_rewritten(folder: Path, normport: Command) -> None:
    """And with the site stays the class that it is made of."""
    source = with_comment("# normport: ignore[NP101]")
    (folder / "model.py").write_text(source)
    assert normport(*WRITE, ".").status == 0
    written = (folder / "model.py").read_text()
    assert f"{FIRST}  # normport: ignore[NP101]\n" in written
    assert "self.second = GemmaRMSNorm(" in written
    assert "class OffsetNorm(" in written
    again = normport(*WRITE, ".")
    assert (again.status, warnings(again.err)) == (0, [])
    assert (folder / "model.py").read_text() == written


def test_on_any_line_of_the_construction(folder: Path, normport: Command) -> None:
    for place in (0, 1, 2):
        lines = ["self.first = OffsetNorm(", "    config.hidden_size, eps=config.rms_norm_eps", ")"]
        lines[place] += "  # normport: ignore"
        source = MODEL.replace(FIRST, "\n        ".join(lines))
        (folder / "model.py").write_text(source)
        result = normport("rewrite", "--no-proof", "model.py")
        assert result.out.count("NP101") == 1
        assert warnings(result.err) == []


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_beside_text_beyond_ascii_and_other_line_ends(
    folder: Path, normport: Command, end: str
) -> None:
    source = with_comment("# normport: ignore").replace("A model", "\N{SNOWMAN} \f model")
    source = source.replace("self.second(self.first(x))", "('\N{SNOWMAN}', self.second(x))[1]")
    (folder / "model.py").write_bytes(b"\xef\xbb\xbf" + source.replace("\n", end).encode())
    result = normport("scan", "--no-proof", "--output-format=json", ".")
    assert [finding["line"] for finding in result.json["findings"]] == [23]
    assert warnings(result.err) == []


def test_refused_sites(folder: Path, normport: Command) -> None:
    source = with_comment("# normport: ignore[NP201, NP202]", REFUSED)
    (folder / "model.py").write_text(source)
    result = normport("scan", "--strict", ".")
    assert "1 refused; 1 ignored by comments." in result.err
    assert warnings(result.err) == [
        "warning: model.py:23:79: `normport: ignore[NP201, NP202]` is unused: nothing on this line "
        "is NP202; drop it."
    ]


@pytest.mark.parametrize(
    ("comment", "said", "kept"),
    [
        ("# normport: ignore[NP102]", "is unused: nothing on this line is NP102; drop it.", 0),
        ("# normport: ignore[NP999]", "there is no rule NP999; drop it.", 0),
        ("# normport: ignore[NP2]", "is unused: nothing on this line is NP2; drop it.", 0),
        ("# normport: ignore[NP1, NP2]", "is unused: nothing on this line is NP2; drop it.", 1),
        ("# normport: ignore[NP9]", "there is no rule NP9; drop it.", 0),
        ("# normport: ignore[N]", "there is no rule N; drop it.", 0),
        ("# normport: ignore[NP101, NP999]", "there is no rule NP999; drop it.", 1),
        ("# normport: ignore[]", "is no comment that normport knows; write ", 0),
        ("# normport: ignored", "is no comment that normport knows; write ", 0),
        ("# normport: ignore[NP101", "is no comment that normport knows; write ", 0),
        ("# normport: skip", "is no comment that normport knows; write ", 0),
        ("# normport ignore[NP101]", "is no comment that normport knows; write ", 0),
        ("# NORMPORT IGNORE [NP101]", "is no comment that normport knows; write ", 0),
        ("# Normport: Ignor[np101]", "is no comment that normport knows; write ", 0),
        ("# NormPort: Ignore[np102]", "is unused: nothing on this line is NP102; drop it.", 0),
    ],
)
def test_comments_that_are_wrong(
    folder: Path, normport: Command, comment: str, said: str, kept: int
) -> None:
    (folder / "model.py").write_text(with_comment(comment))
    result = normport("scan", "--no-proof", "--output-format=json", ".")
    assert len(result.json["findings"]) == 2 - kept
    (warning,) = warnings(result.err)
    assert warning.startswith("warning: model.py:22:79: ")
    assert said in warning
    (unused,) = result.json["summary"]["unused_ignores"]
    assert (unused["path"], unused["line"], unused["column"]) == ("model.py", 22, 79)
    assert result.status == 1


def test_unused_where_no_norm_is(folder: Path, normport: Command) -> None:
    (folder / "plain.py").write_text(PLAIN + "x = 1  # normport: ignore\n")
    (folder / "broken.py").write_bytes(b"def (  # normport: ignore\n'\xff'\n")
    (folder / "model.py").write_text(MODEL + "# normport: ignore[NP101]\n")
    result = normport("scan", "--no-proof", "--output-format=github", ".")
    assert [line.split(":")[1:3] for line in warnings(result.err)] == [
        [" model.py", "27"],
        [" plain.py", "3"],
    ]
    assert "::warning file=plain.py,line=3,col=8,title=normport::" in result.out
    assert "that normport reports; drop it." in warnings(result.err)[1]


def test_strings_are_no_comments(folder: Path, normport: Command) -> None:
    text = MODEL.replace('own."""', 'own.\n\n# normport: ignore[NP101]\n"""')
    source = text.replace("return self.second", "'# normport: ignore'; return self.second")
    (folder / "model.py").write_text(source)
    result = normport("scan", "--no-proof", ".")
    assert "2 to convert" in result.err
    assert warnings(result.err) == []


def test_the_code_that_a_proof_would_give(
    folder: Path, normport: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a proof nobody knows whether the comment is of use."""
    (folder / "model.py").write_text(with_comment("# normport: ignore[NP301]"))
    assert warnings(normport("scan", "--no-proof", ".").err) == []
    equal = Equivalence("equal", {}, "the layers")
    monkeypatch.setattr(judge, "prove", lambda cases, _: [equal] * len(cases))
    proven = normport("scan", ".")
    assert ["NP301" in line for line in warnings(proven.err)] == [True]
    assert "2 to convert" in proven.err


def test_a_rule_that_is_not_selected_does_not_make_it_unused(
    folder: Path, normport: Command
) -> None:
    (folder / "model.py").write_text(with_comment("# normport: ignore[NP101]"))
    result = normport("scan", "--no-proof", "--select=NP2", ".")
    assert (result.status, warnings(result.err)) == (0, [])


HEADS = """\
@decorated  # normport: ignore[NP201]
class A(
    B,  # normport: ignore[NP202]
):
    x = 1  # normport: ignore[NP203]


class C: x = '\\d'; y = D(1)(  # normport: ignore[NP204]
    2
)  # normport: ignore[NP205]
"""


@pytest.mark.parametrize(
    ("line", "column", "hidden"),
    [
        (2, 1, {"NP201", "NP202"}),  # the head of a class that is never constructed
        (8, 1, {"NP204"}),
        (8, 24, {"NP204", "NP205"}),  # the longest call that starts there
        (3, 5, {"NP202"}),
        (1, 50, {"NP201"}),  # a place where nothing starts is its own line
    ],
)
def test_the_lines_of_a_construction(line: int, column: int, hidden: set[str]) -> None:
    site = Site(line, column, "NP201", "A", None, None, "refuse", None, None)
    comments = Suppressions(HEADS, "m.py")
    found = {f"NP20{n}" for n in range(1, 6) if comments.hides(site, f"NP20{n}")}
    assert found == hidden
    assert len(comments.complaints()) == 5 - len(hidden)
