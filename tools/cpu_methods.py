"""``forward_cpu`` of the standard norm layers, for the optional norm-add-norm patch.

The methods' text is ``normport.layers.in_tree``'s. They go into a ``layernorm.py`` whose classes
compute natively what the methods compute; into any other one they do not.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from normport.tools.backport import (
    LAYERNORM,
    _class,
    _defined,
    _end,
    _function,
    _imports,
    _in_tree,
    _insert,
    _Source,
)
from normport.tools.gemma_form import computes_gemma_norm, computes_rms_norm
from normport.tools.tree import FileChange, SourceTree

CONSTANT = "_ONE"
NORMS = {"RMSNorm": computes_rms_norm, "GemmaRMSNorm": computes_gemma_norm}


def add_cpu_methods(tree: SourceTree, changed: Mapping[str, bytes]) -> FileChange | None:
    """The change of ``layernorm.py`` after ``changed``; None where it does not fit.

    A class that is missing, has a ``forward_cpu`` or computes something else keeps both as they
    are: the methods only save time.
    """
    path = tree.root / LAYERNORM
    before = changed.get(LAYERNORM)
    if before is None:
        if not path.is_file():
            return None
        before = path.read_bytes()
    try:
        source = _Source(LAYERNORM, before, ast.parse(before))
    except (SyntaxError, ValueError):
        return None
    if not (_imports(source.tree, None, "torch") and _imports(source.tree, "vllm", "ir")):
        return None
    text = _in_tree("cpu_layernorm.py")
    if CONSTANT in _defined(source.tree):
        return None
    norm = None
    insertions: dict[int, str] = {}
    for name, computes in NORMS.items():
        norm = _class(source.tree, name)
        if norm is None or not computes(norm) or _function(norm.body, "forward_cpu") is not None:
            return None
        cuda = _function(norm.body, "forward_cuda")
        if cuda is None:
            return None
        insertions[_end(cuda)] = "\n" + text.definition(f"{name}.forward_cpu")
    assert norm is not None
    constant = "\n\n" + text.text[text.text.rindex("\n# ") + 1 :]
    insertions[_end(norm)] = insertions.get(_end(norm), "") + constant
    return FileChange(LAYERNORM, before, _insert(source, insertions))
