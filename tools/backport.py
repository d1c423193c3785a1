"""The XPU dispatch of GemmaRMSNorm as a patch for the vLLM releases that lack it.

The text comes from ``normport.layers.in_tree``, function by function; nothing of it stands here.
Where it goes is found by structure (the class, its methods, the block that registers ops), so
moved lines do not matter. A file in which that structure is not found is a conflict, and then no
file is changed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal

from normport.tools.errors import UserError
from normport.tools.gemma_form import computes_gemma_norm
from normport.tools.tree import SIGN_OFF, FileChange, Patch, SourceTree

LAYERNORM = "vllm/model_executor/layers/layernorm.py"
XPU_OPS = "vllm/_xpu_ops.py"
TESTS = "tests/kernels/core/test_xpu_gemma_rms_norm.py"

Status = Literal["needed", "obsolete", "conflict", "absent"]

OP_NAMES = ("xpu_gemma_rms_norm", "xpu_fused_add_gemma_rms_norm")

SUBJECT = "[XPU] Dispatch GemmaRMSNorm to the Gemma kernels of vllm-xpu-kernels"

WHY = """\
GemmaRMSNorm has no forward_xpu in this release, so on XPU it runs as a chain of
PyTorch ops in eager mode, although vllm-xpu-kernels 0.1.14.1 has gemma_rms_norm and
fused_add_gemma_rms_norm. This adds the dispatch that vLLM 0.30 has, under the same
op names.

Where a kernel would be wrong or fail the native path is taken: kernels missing; an
input that is not float16, bfloat16 or float32; a weight of another dtype or size or not
contiguous; a rank outside 2 to 4; rows of one element; a residual of another shape,
dtype, device or layout; an input whose stride(-2) is not the length of a row, which a
dimension of size 1 may have although the input is contiguous; an input that overlaps
itself or shares memory with the residual or the weight; batch-invariant mode. The
guards are many because the kernels check only some of this themselves and compute
something else, without an error, for the rest. Without tokens no kernel runs. In traced
code whatever depends on the row count is checked inside the ops, because vLLM drops
Dynamo's guards and a branch there would freeze. Traced code adds first and then calls
xpu_gemma_rms_norm, because the fused op works in place and a graph does not keep which
of its arguments share memory; the result is the fused kernel's, and compiled code does
not write its arguments.

One difference is accepted, as upstream accepts it: the fused kernel normalizes
x + residual after rounding the sum to the dtype, the native path before. In float16
and bfloat16 a result may differ by a rounding step or two.

With torch.compile the dispatch is used only when it is enabled, e.g. by
custom_ops=["none", "+gemma_rms_norm"].

The tests run without an XPU too: the kernels are then stand-ins with the same
schemas. Neither the dispatch nor its tests have been run on an XPU so far."""

DROPPABLE = "vLLM 0.30 or later, which ships GemmaRMSNorm.forward_xpu"


@dataclass(frozen=True)
class BackportResult:
    """What the backport found in a tree.

    status: ``needed`` (``patch`` is what to apply), ``obsolete`` (the dispatch is there),
        ``conflict`` (the files are not as expected, nothing is changed) or ``absent`` (the tree
        has no GemmaRMSNorm to dispatch).
    reason: one sentence, always there.
    """

    status: Status
    reason: str
    patch: Patch | None = None


class _ConflictError(Exception):
    """The structure that an insertion needs is not there; one sentence."""


@dataclass(frozen=True)
class _Source:
    """A file of the tree, with what it takes to insert whole lines into it."""

    path: str
    content: bytes
    tree: ast.Module

    @property
    def newline(self) -> str:
        return "\r\n" if b"\r\n" in self.content else "\n"


def backport(tree: SourceTree) -> BackportResult:
    """Work out the XPU dispatch patch for ``tree``; nothing is written.

    Raises:
        UserError: one of the two files is there and cannot be read or parsed.
    """
    layernorm = _read(tree, LAYERNORM)
    norm = _class(layernorm.tree, "GemmaRMSNorm") if layernorm else None
    if layernorm is None or norm is None:
        return BackportResult("absent", f"{tree.origin} has no GemmaRMSNorm in {LAYERNORM}.")
    xpu_ops = _read(tree, XPU_OPS)
    if xpu_ops is None:
        return BackportResult("absent", f"{tree.origin} has no {XPU_OPS}.")

    has_method = _function(norm.body, "forward_xpu") is not None
    registered = [name for name in OP_NAMES if name in set(_registered_ops(xpu_ops.tree))]
    if has_method and len(registered) == len(OP_NAMES):
        return BackportResult(
            "obsolete",
            f"{LAYERNORM} of {tree.origin} already has GemmaRMSNorm.forward_xpu and {XPU_OPS} "
            "registers its ops.",
        )
    try:
        if has_method or registered:
            raise _ConflictError(
                f"{tree.origin} has only a part of the XPU dispatch of GemmaRMSNorm: "
                + (f"{LAYERNORM} defines" if has_method else f"{LAYERNORM} does not define")
                + f" forward_xpu, {XPU_OPS} registers {' and '.join(registered) or 'no op for it'}"
                "; put both files back as the release has them, or complete the patch."
            )
        changes = (
            FileChange(LAYERNORM, layernorm.content, _add_method(layernorm, norm)),
            FileChange(XPU_OPS, xpu_ops.content, _add_ops(xpu_ops)),
            _add_tests(tree),
        )
    except _ConflictError as conflict:
        return BackportResult("conflict", str(conflict))
    patch = Patch(
        name="xpu-gemma-rms-norm-dispatch",
        subject=SUBJECT,
        why=WHY,
        trailers=(SIGN_OFF,),
        changes=changes,
        droppable=DROPPABLE,
    )
    return BackportResult(
        "needed", f"{LAYERNORM} of {tree.origin} has no GemmaRMSNorm.forward_xpu.", patch
    )


def _read(tree: SourceTree, path: str) -> _Source | None:
    file = tree.root / path
    if not file.is_file():
        return None
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; check its rights.") from error
    try:
        parsed = ast.parse(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 at byte {error.start}; restore the file.") from error
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f" at line {line}" if line else ""
        raise UserError(f"{path} does not parse{where}; restore the file.") from error
    return _Source(path, content, parsed)


def _add_method(source: _Source, norm: ast.ClassDef) -> bytes:
    """``forward_xpu`` after the class's ``forward_cuda``, with which it shares its signature."""
    before = _function(norm.body, "forward_cuda")
    if before is None or not {"weight", "variance_epsilon"} <= _set_on_self(norm):
        raise _ConflictError(
            f"{source.path}, line {norm.lineno}: GemmaRMSNorm has no forward_cuda, weight and "
            "variance_epsilon to build forward_xpu on."
        )
    if not _imports(source.tree, "vllm", "ir") or not computes_gemma_norm(norm):
        raise _ConflictError(
            f"{source.path}, line {norm.lineno}: GemmaRMSNorm.forward_native is not the norm that "
            "the XPU kernels compute, ir.ops.rms_norm and ir.ops.fused_add_rms_norm with "
            "self.weight.float() + 1.0: restore it; `normport rewrite` goes without the backport."
        )
    if not _imports(source.tree, "vllm", "envs") or not _imports(source.tree, None, "torch"):
        raise _ConflictError(
            f"{source.path} does not import torch and vllm.envs, which it would need."
        )
    text = _in_tree("layernorm.py").definition("GemmaRMSNorm.forward_xpu")
    return _insert(source, {_end(before): "\n" + text})


def _add_ops(source: _Source) -> bytes:
    """Guards and implementations after the last one that is registered, then the registration."""
    block = _registration_block(source)
    known = {
        keyword.value.id
        for statement in block
        for keyword in _calls_keywords(statement)
        if keyword.arg in ("op_func", "fake_impl") and isinstance(keyword.value, ast.Name)
    }
    functions = [
        node
        for node in source.tree.body
        if isinstance(node, ast.FunctionDef) and node.name in known
    ]
    registrations = [
        statement
        for statement in block
        if any(keyword.arg == "op_func" for keyword in _calls_keywords(statement))
    ]
    if not functions or not registrations:
        raise _ConflictError(
            f"{source.path}: register_ops_once registers no function of this file."
        )
    text = _in_tree("xpu_ops.py")
    taken = sorted(set(text.defines) & _defined(source.tree))
    if taken:
        raise _ConflictError(
            f"{source.path} already defines {taken[0]}, which the backport would add."
        )
    for module, name in ((None, "torch"), ("vllm.utils.torch_utils", "direct_register_custom_op")):
        if not _imports(source.tree, module, name):
            raise _ConflictError(f"{source.path} does not import {name}, which it would need.")

    insertions = _missing_imports(source)
    # Two blank lines stand before and after a top-level block, as ruff format puts them.
    insertions[_end(functions[-1])] = "\n\n" + text.body.rstrip("\n") + "\n"
    indent = " " * registrations[-1].col_offset
    added = "".join(
        f"{indent}{line}\n" if line else "\n" for line in text.inside("register_ops").split("\n")
    )
    insertions[_end(registrations[-1])] = "\n" + added
    return _insert(source, insertions)


def _missing_imports(source: _Source) -> dict[int, str]:
    """``import math`` and ``from vllm import ir`` where isort puts them, by line."""
    imports = [node for node in source.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    insertions: dict[int, str] = {}
    if not _imports(source.tree, None, "math"):
        insertions[imports[0].lineno - 1] = "import math\n"
    if not _imports(source.tree, "vllm", "ir"):
        own = [
            node
            for node in imports
            if isinstance(node, ast.ImportFrom) and re.match(r"vllm(\.|$)", node.module or "")
        ]
        if not own or own[0].module == "vllm" or not isinstance(imports[0], ast.ImportFrom):
            raise _ConflictError(f"{source.path}: its imports are not in the expected order.")
        insertions[own[0].lineno - 1] = "from vllm import ir\n"
    return insertions


def _registration_block(source: _Source) -> list[ast.stmt]:
    """The statements of ``if not _OPS_REGISTERED:`` in ``xpu_ops.register_ops_once``."""
    ops = _class(source.tree, "xpu_ops")
    method = _function(ops.body, "register_ops_once") if ops else None
    for node in method.body if method else ():
        if isinstance(node, ast.If) and ast.unparse(node.test) == "not _OPS_REGISTERED":
            return node.body
    raise _ConflictError(
        f"{source.path} has no xpu_ops.register_ops_once with an `if not _OPS_REGISTERED:` block."
    )


def _add_tests(tree: SourceTree) -> FileChange:
    content = files("normport.layers.in_tree").joinpath(Path(TESTS).name).read_bytes()
    if (tree.root / TESTS).exists():
        raise _ConflictError(f"{tree.origin} already has a file {TESTS}.")
    return FileChange(TESTS, None, content)


def _insert(source: _Source, insertions: dict[int, str]) -> bytes:
    """``source`` with text inserted after the given numbers of lines, in its line endings."""
    lines = source.content.split(b"\n")
    result = []
    for number, line in enumerate(lines):
        if number in insertions:
            text = insertions[number].removesuffix("\n").replace("\n", source.newline)
            result.append(text.encode() + source.newline.encode().removesuffix(b"\n"))
        result.append(line)
    return b"\n".join(result)


@dataclass(frozen=True)
class _InTree:
    """One of our modules, to be copied from by name."""

    text: str
    tree: ast.Module

    @property
    def _body_nodes(self) -> Iterator[ast.stmt]:
        """Everything but the docstring, the imports and ``register_ops``."""
        for node in self.tree.body[1:]:
            if not isinstance(node, ast.Import | ast.ImportFrom) and (
                getattr(node, "name", None) != "register_ops"
            ):
                yield node

    @property
    def defines(self) -> list[str]:
        return [name for node in self._body_nodes for name in _names(node)]

    @property
    def body(self) -> str:
        """What goes to the top level of vLLM's module, with the comments before it."""
        nodes = list(self._body_nodes)
        imports = [n for n in self.tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
        lines = self.text.splitlines(keepends=True)
        return "".join(lines[_end(imports[-1]) : _end(nodes[-1])]).lstrip("\n")

    def definition(self, dotted: str) -> str:
        """A method or function as it stands, indentation and all."""
        body, node = self.tree.body, None
        for name in dotted.split("."):
            node = next(n for n in body if getattr(n, "name", None) == name)
            body = getattr(node, "body", [])
        assert node is not None
        return "".join(self.text.splitlines(keepends=True)[node.lineno - 1 : _end(node)])

    def inside(self, function: str) -> str:
        """The body of a function without its indentation."""
        node = _function(self.tree.body, function)
        assert node is not None
        lines = self.text.splitlines()[node.body[0].lineno - 1 : _end(node)]
        return "\n".join(line[4:] for line in lines)


def _in_tree(name: str) -> _InTree:
    text = files("normport.layers.in_tree").joinpath(name).read_text(encoding="utf-8")
    return _InTree(text, ast.parse(text))


def _end(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno


def _class(tree: ast.Module, name: str) -> ast.ClassDef | None:
    found = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    return next(found, None)


def _function(body: list[ast.stmt], name: str) -> ast.FunctionDef | None:
    found = (n for n in body if isinstance(n, ast.FunctionDef) and n.name == name)
    return next(found, None)


def _set_on_self(norm: ast.ClassDef) -> set[str]:
    return {
        node.attr
        for node in ast.walk(norm)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }


def _names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id


def _defined(tree: ast.Module) -> set[str]:
    return {name for node in tree.body for name in _names(node)}


def _imports(tree: ast.Module, module: str | None, name: str) -> bool:
    """Whether the module binds ``name`` by ``import name`` or ``from module import name``."""
    return any(
        isinstance(node, ast.Import if module is None else ast.ImportFrom)
        and (module is None or getattr(node, "module", None) == module)
        and any(alias.name == name and alias.asname is None for alias in node.names)
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def _calls_keywords(statement: ast.stmt) -> Iterator[ast.keyword]:
    """The keywords of the ``direct_register_custom_op`` calls within a statement."""
    for node in ast.walk(statement):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "direct_register_custom_op"
        ):
            yield from node.keywords


def _registered_ops(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        for keyword in _calls_keywords(statement):
            if keyword.arg == "op_name" and isinstance(keyword.value, ast.Constant):
                yield str(keyword.value.value)
