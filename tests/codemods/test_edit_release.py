"""A plan for a real model file of each release leaves it as clean as vLLM's own checks want it."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Callable

import pytest
from plans import LAYERNORM, NOTHING, is_formatted, lint

from normport.codemods.edit import apply_plan
from normport.codemods.model import Edit, EditResult, FilePlan
from normport.tools.tree import SourceTree

MODEL = "vllm/model_executor/models/muse_glimmer.py"
LOCAL = "MuseGlimmerRMSNorm"
SIZES = {
    "qk_norm": "self.head_dim",
    "embed_norm": "config.hidden_size",
    "perception_emb_norm": "text_config.hidden_size",
}

pytestmark = pytest.mark.release


def hand_made_plan(text: str) -> FilePlan:
    """Every construction by its attribute's name, and annotations with the class."""
    edits = []
    for statement in ast.walk(ast.parse(text)):
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            continue
        for node in ast.walk(statement):
            callee = node.func if isinstance(node, ast.Call) else None
            if isinstance(callee, ast.Name) and callee.id == LOCAL:
                old = ast.get_source_segment(text, node) or ""
                target = ast.unparse(statement).split(" = ")[0].split(".")[-1]
                edits.append(Edit(node.lineno, node.col_offset + 1, old, target_text(target, old)))
        annotation = statement.annotation if isinstance(statement, ast.AnnAssign) else None
        for node in ast.walk(annotation) if annotation else ():
            if isinstance(node, ast.Name) and node.id == LOCAL:
                edits.append(Edit(node.lineno, node.col_offset + 1, LOCAL, "RMSNorm"))
    imports = {LAYERNORM: ("GemmaRMSNorm", "RMSNorm"), "torch": ()}
    return FilePlan(tuple(edits), imports, (LOCAL,))


def target_text(attribute: str, old: str) -> str:
    eps = re.findall(r"eps=([\w.]+)", old)[0]
    if "weight_offset" in old:
        return f"GemmaRMSNorm(config.hidden_size, eps={eps})"
    if attribute in SIZES:
        return f"RMSNorm({SIZES[attribute]}, eps={eps}, has_weight=False)"
    return f"RMSNorm(config.hidden_size, eps={eps}, dtype=torch.float32)"


@pytest.mark.parametrize("version", ["0.28.0", "0.29.0", "0.33.0"])
def test_muse_glimmer_stays_clean(version: str, release: Callable[[str], SourceTree]) -> None:
    before = (release(version).root / MODEL).read_bytes()
    wanted = hand_made_plan(before.decode())
    result = apply_plan(before, wanted)
    assert result.removed == (LOCAL,)
    assert LOCAL not in result.source.decode()
    assert apply_plan(result.source, NOTHING) == EditResult(result.source)

    assert is_formatted(before)
    assert is_formatted(result.source)
    assert lint(result.source) == lint(before) == []
    assert f"\nfrom {LAYERNORM} import GemmaRMSNorm, RMSNorm\nfrom " in result.source.decode()
    assert_only_planned(before.decode(), result.source.decode(), wanted)


def assert_only_planned(before: str, after: str, wanted: FilePlan) -> None:
    """Apart from the import and the class, the syntax trees differ by the edits alone."""
    flat = before.splitlines(keepends=True)
    for edit in sorted(wanted.edits, key=lambda item: item.line, reverse=True):
        lines = edit.old.count("\n") + 1
        text = "".join(flat[edit.line - 1 : edit.line - 1 + lines])
        flat[edit.line - 1 : edit.line - 1 + lines] = [text.replace(edit.old, edit.new)]
    tree = ast.parse("".join(flat))
    kept = [
        ast.dump(node)
        for node in tree.body
        if not (isinstance(node, ast.ClassDef) and node.name == LOCAL)
    ]
    mine = [
        ast.dump(node)
        for node in ast.parse(after).body
        if not (isinstance(node, ast.ImportFrom) and node.module == LAYERNORM)
    ]
    assert mine == kept
    assert len(wanted.edits) == 8 + after.count("perception_emb_norm: RMSNorm")
    comments = [line for line in before.splitlines() if line.strip().startswith("#")]
    assert [line for line in after.splitlines() if line.strip().startswith("#")] == comments
    diff = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    assert len([line for line in diff if line.startswith("+")]) <= 40
