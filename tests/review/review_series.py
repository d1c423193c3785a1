"""A small series with everything on it that a page has to cope with, and what reads a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from probe_records import simulation

from normport.tools.series import write_series
from normport.tools.tree import FileChange, Patch, SourceTree

Run = Callable[..., tuple[int, str, str]]
"""Runs the command line: exit status, stdout and stderr."""

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = ROOT / "patches" / "0.29.0"

MODEL = "vllm/model_executor/models/evil.py"
HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">'
REORDERED = "if admin\u202e # \u2066user\u2069:"

BEFORE = f'''\
class Local:
    """{HOSTILE}"""


class Model:
    def __init__(self, config):
        self.norm = Local(
            config.hidden_size, eps=config.eps
        )
        # {REORDERED}
'''
AFTER = """\
class Model:
    def __init__(self, config):
        self.norm = RMSNorm(config.hidden_size, eps=config.eps)
"""
BUCKETS = ("0", "1", "2-4", "5-16", "17-256", ">256")


def result(differing: int = 0, elements: int = 1000) -> dict[str, Any]:
    """What a proof found in one dtype; the differing elements are 1 ulp apart."""
    histogram = dict.fromkeys(BUCKETS, 0) | {"0": elements - differing, "1": differing}
    return {
        "max_ulp": int(differing > 0),
        "max_ulp_normal": int(differing > 0),
        "differing": differing,
        "elements": elements,
        "inputs": 7,
        "beyond": 0,
        "nonfinite": 0,
        "zero_signs": 0,
        "worst": f"2-D, {HOSTILE}" if differing else None,
        "histogram": histogram,
    }


def evidence(**changes: Any) -> dict[str, Any]:
    """A site's record as ``port`` writes it."""
    return {
        "path": MODEL,
        "line": 7,
        "column": 21,
        "code": "NP103",
        "norm": "Local",
        "computes": {
            "weight": "scale",
            "offset": 0.0,
            "multiply_in": "float32",
            "eps": "config.eps",
            "initial": "ones",
            "weight_dtype": "run dtype",
            "residual": False,
            "grouped": False,
            "gated": False,
            "bias": False,
            "mean_subtracted": False,
        },
        "verdict": "convert",
        "target": "RMSNorm(config.hidden_size, eps=config.eps)",
        "safety": "unsafe",
        "equivalence": {
            "float32": result(),
            "float16": result(211),
            "bfloat16": result(216),
            "float32_checkpoint": {"float16": result(3)},
            "forms": {"norm(x) with 4-D input": {"float32": result()}},
        },
        "reason": f"Differs by rounding {HOSTILE}",
        "lost_comments": [f"# {HOSTILE}"],
    } | changes


def refusal(**changes: Any) -> dict[str, Any]:
    """A site that stays."""
    values = {"verdict": "refuse", "safety": None, "target": None, "equivalence": None}
    return evidence(**values, code="NP201", reason=f"It stays: {HOSTILE}.", line=99) | changes


def hostile_series(folder: Path) -> Path:
    """Writes a series whose every text tries to be markup or to hide."""
    tree = SourceTree(folder, "0.29.0", "x", git=False, writable=False)
    patch = Patch(
        "evil-standard-norms",
        f"[Model] {HOSTILE}",
        f"Why: {HOSTILE}\n\n  laid out: {REORDERED}\n\nUses `code <b>`.",
        (),
        (
            FileChange(MODEL, BEFORE.encode(), AFTER.encode()),
            FileChange("vllm/<b>.py", None, b"x = '\x00\xff\x0c\x1b[31m'\r\nno end"),
        ),
        f"{HOSTILE} goes.",
    )
    proof = {
        "evil-standard-norms": [evidence()],
        "left": [refusal(), refusal(code="NP401", norm=HOSTILE), refusal(code="NP999")],
        "bound": f"2 ulp {HOSTILE}",
        "probes": [simulation(HOSTILE)],
    }
    out = folder / "series"
    write_series(out, tree, [patch], [], proof)
    return out


@dataclass
class Page(HTMLParser):
    """What a browser would make of a page: elements with their attributes, and the text."""

    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in {"meta", "input", "br", "col"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in {"script", "style"}:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def all(self, tag: str) -> Iterator[dict[str, str | None]]:
        return (attributes for name, attributes in self.elements if name == tag)


def read(page: Path) -> Page:
    """Parses the file; every element in it has to be closed where it should."""
    parser = Page()
    parser.feed(page.read_text("utf-8"))
    parser.close()
    assert parser.open == []
    return parser
