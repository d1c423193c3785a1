"""The guarded XPU norms as an optional patch: what the plug-in installs, put into vLLM's tree.

The two new files are ``normport.layers.in_tree``'s, byte for byte behind vLLM's licence lines, so
the text of the patch is the text that the tests run. It is written only when ``port`` is asked.
"""

from __future__ import annotations

import ast
from importlib.resources import files

from normport.tools.backport import _class, _end, _function, _insert, _read, _Source
from normport.tools.errors import UserError
from normport.tools.tree import SIGN_OFF, FileChange, Patch, SourceTree

LICENCE = b"""\
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""
KERNELS = "vllm/kernels/__init__.py"
PLATFORM = "vllm/platforms/xpu.py"
MANAGER = "vllm/compilation/passes/pass_manager.py"
NEW_FILES = {
    "vllm/kernels/xpu_norm_providers.py": "xpu_norm_providers.py",
    "vllm/compilation/passes/fusion/xpu_gemma_rms_norm.py": "xpu_gemma_pass.py",
}
"""Path in vLLM -> module of ``normport.layers.in_tree``."""

PLACE = """\

        # Last, because fusion defaults look at which provider stands first.
        from vllm.kernels.xpu_norm_providers import place_norm_providers

        place_norm_providers(vllm_config)
"""
IMPORT = "    from .fusion.xpu_gemma_rms_norm import XpuGemmaRMSNormPass\n"
ADD = """\
            if current_platform.is_xpu():
                self.passes += [XpuGemmaRMSNormPass()]

"""

WHY = """\
Two guarded IR providers of rms_norm for XPU, put first by priority: xpu_fp16_row for one
float16 row with its weight, xpu_weightless_qk for the weightless norm of one token's heads.
Both run the kernel that vllm_c runs. With compile_sizes=[1] the one-row graph calls it where
the native chain would stand; every other range stays with Inductor, because a symbolic size is
always refused. Where vllm_c stands first, as in eager mode, it runs the kernel already, and
without a graph of one known size none could take it: there the order stays as it is, because a
provider that declines costs a call outside of a graph some microseconds. A pass gives
GemmaRMSNorm its kernel in the same graph: it recognizes weight.float() + 1.0 before the IR is
lowered.

An order of providers that the user chose is left alone, and so is batch-invariant mode. The
providers are placed after the defaults that look at the first one, so no fusion pass is
switched by them. Not run on an XPU so far."""


def optional_dispatch(tree: SourceTree) -> Patch:
    """The patch for ``tree``, on top of its series; UserError where the tree is not as expected."""
    changes = [
        _change(tree, KERNELS, _register),
        _change(tree, PLATFORM, _place),
        _change(tree, MANAGER, _add_pass),
    ]
    for path, module in NEW_FILES.items():
        if (tree.root / path).exists():
            raise UserError(f"{tree.origin} already has {path}; the optional patch is applied.")
        text = files("normport.layers.in_tree").joinpath(module).read_bytes()
        changes.append(FileChange(path, None, LICENCE + text))
    return Patch(
        name="xpu-guarded-norms",
        subject="[XPU] Run one-row and weightless QK norms by guarded IR providers",
        why=WHY,
        trailers=(SIGN_OFF,),
        changes=tuple(sorted(changes, key=lambda change: change.path)),
        droppable="vLLM's own XPU providers cover one-row graphs, or the plug-in is used instead.",
    )


def _change(tree: SourceTree, path: str, edit: object) -> FileChange:
    source = _read(tree, path)
    if source is None:
        raise UserError(f"{tree.origin} has no {path}, which --with-xpu-norms would change.")
    assert callable(edit)
    after = edit(source)
    if after is None:
        raise UserError(
            f"{path} of {tree.origin} is not built as --with-xpu-norms expects; port without it."
        )
    return FileChange(path, source.content, after)


def _register(source: _Source) -> bytes | None:
    """``xpu_norm_providers`` at the end of the imports and of ``__all__``, each on one line."""
    text = source.content.decode()
    imported = [n for n in source.tree.body if isinstance(n, ast.ImportFrom) and n.level == 1]
    listed = [n for n in source.tree.body if isinstance(n, ast.Assign)]
    if len(imported) != 1 or len(listed) != 1 or not isinstance(listed[0].value, ast.List):
        return None
    lines = text.split("\n")
    for node, what in ((listed[0], '"xpu_norm_providers"'), (imported[0], "xpu_norm_providers")):
        if node.lineno != node.end_lineno:
            return None
        line = lines[node.lineno - 1]
        head, tail = (line[:-1], line[-1:]) if line.endswith("]") else (line, "")
        lines[node.lineno - 1] = f"{head}, {what}{tail}"
    return "\n".join(lines).encode()


def _place(source: _Source) -> bytes | None:
    platform = _class(source.tree, "XPUPlatform")
    method = _function(platform.body, "check_and_update_config") if platform else None
    # An early return would leave out what is added at the end.
    if method is None or any(isinstance(node, ast.Return) for node in ast.walk(method)):
        return None
    return _insert(source, {_end(method): PLACE})


def _add_pass(source: _Source) -> bytes | None:
    manager = _class(source.tree, "PostGradPassManager")
    configure = _function(manager.body, "configure") if manager else None
    blocks = [
        node
        for node in source.tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "current_platform.is_xpu()"
    ]
    lowering = [
        node
        for node in ast.walk(configure or ast.Pass())
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "self.ir_lowering"
    ]
    if len(blocks) != 1 or len(lowering) != 1:
        return None
    return _insert(source, {_end(blocks[0]): IMPORT, lowering[0].lineno - 1: ADD})
