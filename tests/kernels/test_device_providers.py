"""Providers of devices that are not here, on stand-ins: which calls they take, and what they do.

A stand-in has the schema and the limits of the real op. It shows that the guards keep out what the
op computes wrongly, and nothing about the op's own numbers or speed.
"""

from __future__ import annotations

import struct
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from norm_cases import DTYPES, check_close, draw, exact_norm
from torch import Tensor

from normport.kernels import schemas
from normport.kernels.fused_add_rms_norm import fused_add_rms_norm
from normport.kernels.op import Op
from normport.kernels.providers import ipex, musa, vllm_cpu, xpu
from normport.kernels.reasons import Reason
from normport.kernels.rms_norm import rms_norm

SPACE = "normport_stand_in"
ran: list[str] = []


def row_norm(rows: Tensor, weight: Tensor | None, epsilon: float, offset: bool) -> Tensor:
    wide = rows.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return wide if weight is None else wide * (weight.float() + offset)


def plain(offset: bool) -> Callable[..., None]:
    def run(result: Tensor, input: Tensor, weight: Tensor | None, epsilon: float) -> None:
        ran.append("gemma" if offset else "plain")
        assert input.numel()
        assert input.dim() in (2, 3, 4)
        assert weight is None or weight.dtype == input.dtype
        assert result.is_contiguous()
        result.copy_(row_norm(input, weight, epsilon, offset))

    return run


def fused(offset: bool) -> Callable[..., None]:
    def run(
        input: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float, block_x: int = 0
    ) -> None:
        ran.append("fused gemma" if offset else "fused")
        assert input.is_contiguous()
        assert residual.is_contiguous()
        residual.copy_(input + residual)
        input.copy_(row_norm(residual, weight, epsilon, offset))

    return run


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.library.Library]:
    """An empty namespace in which the providers look for their ops."""
    ran.clear()
    torch.manual_seed(7)
    for module in (xpu, musa, vllm_cpu):
        monkeypatch.setattr(module, "NAMESPACE", SPACE)
    made = torch.library.Library(SPACE, "FRAGMENT")
    yield made
    made._destroy()
    refresh()


def refresh() -> None:
    xpu._status.clear()
    rms_norm.refresh()
    fused_add_rms_norm.refresh()


@pytest.fixture
def xpu_ops(library: torch.library.Library) -> None:
    implementations = {
        "rms_norm": plain(False),
        "gemma_rms_norm": plain(True),
        "fused_add_rms_norm": fused(False),
        "fused_add_gemma_rms_norm": fused(True),
    }
    for name, run in implementations.items():
        library.define(name + schemas.XPU_SCHEMAS[name])
        library.impl(name, run, "CPU")
    refresh()
    assert xpu._rms_norm_supported() is None
    assert xpu._fused_add_rms_norm_supported() is None


def why_not(op: Op[..., object], name: str, *args: object) -> str | None:
    return op.providers[name].why_not(*args)


@pytest.mark.usefixtures("xpu_ops")
@pytest.mark.parametrize("dtype", DTYPES)
def test_xpu_takes_the_kernel_of_each_kind(dtype: torch.dtype) -> None:
    x, residual, weight = draw(7, 64, dtype=dtype), draw(7, 64, dtype=dtype), draw(64, dtype=dtype)
    exact_sum = (x + residual).double()
    for given, offset, kernels in (
        (None, False, ["plain", "fused"]),
        (weight, False, ["plain", "fused"]),
        (weight, True, ["gemma", "fused gemma"]),
    ):
        ran.clear()
        assert why_not(rms_norm, "xpu", x, given, 1e-6, None, offset, offset) is None
        out = rms_norm.providers["xpu"].run(x, given, 1e-6, None, offset, offset)
        check_close(out, exact_norm(x, given, 1e-6, offset))
        before = x.clone(), residual.clone()
        assert (
            why_not(fused_add_rms_norm, "xpu", x, residual, given, 1e-6, None, offset, offset)
            is None
        )
        run = fused_add_rms_norm.providers["xpu"].run
        normed, total = run(x, residual, given, 1e-6, None, offset, offset)
        assert torch.equal(total, x + residual)
        check_close(normed, exact_norm(exact_sum, given, 1e-6, offset), 2)
        assert ran == kernels
        assert torch.equal(x, before[0])
        assert torch.equal(residual, before[1])


SHARED = torch.randn(8, 64).bfloat16()


@pytest.mark.usefixtures("xpu_ops")
@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (lambda: (draw(7, 64, dtype=torch.float64), None), Reason.DTYPE),
        (lambda: (draw(64), None), Reason.RANK),
        (lambda: (draw(1, 1, 1, 2, 64), None), Reason.RANK),
        (lambda: (draw(0, 64), None), Reason.EMPTY),
        (lambda: (draw(7, 64), draw(64, dtype=torch.float32)), Reason.WEIGHT_DTYPE),
        (lambda: (draw(7, 64), draw(7, 64)), Reason.WEIGHT_SHAPE),
        (lambda: (draw(7, 64), draw(128)[::2]), Reason.WEIGHT_LAYOUT),
        (lambda: (draw(7, 64), draw(64).to("meta")), Reason.DEVICE),
        (lambda: (draw(1, 64).expand(7, 64), None), Reason.OVERLAP),
        (lambda: (SHARED[:7], SHARED[3]), Reason.SHARED),
        (lambda: (draw(7, 64), None, 1e-6, 32), Reason.VARIANCE_SIZE),
        (lambda: (draw(7, 64), draw(64), 1e-6, None, True, False), Reason.ROUNDING),
        (lambda: (draw(7, 1), draw(1), 1e-6, None, True, True), Reason.SIZE),
    ],
)
def test_xpu_leaves_what_the_kernel_cannot_take(
    args: Callable[[], tuple[Tensor, ...]], reason: Reason
) -> None:
    x, weight, *rest = args()
    rest = rest or [1e-6]
    assert why_not(rms_norm, "xpu", x, weight, *rest) == reason
    assert why_not(fused_add_rms_norm, "xpu", x, x.clone(), weight, *rest) == reason
    assert ran == []


@pytest.mark.usefixtures("xpu_ops")
def test_xpu_leaves_a_residual_that_is_not_like_the_input() -> None:
    x = draw(7, 64)
    for residual in (draw(1, 64), draw(7, 64).float(), draw(7, 64).to("meta")):
        assert why_not(fused_add_rms_norm, "xpu", x, residual, None, 1e-6) == Reason.RESIDUAL


def test_an_xpu_op_with_another_schema_is_reported_and_not_called(
    library: torch.library.Library,
) -> None:
    library.define("rms_norm(Tensor! result, Tensor input, Tensor weight, float epsilon) -> ()")
    library.define("gemma_rms_norm(Tensor! result, Tensor input, Tensor w, float epsilon) -> ()")
    refresh()
    assert xpu._rms_norm_supported() == Reason.SCHEMA_MISMATCH


def test_xpu_without_the_gemma_kernels_still_has_the_plain_one(
    library: torch.library.Library,
) -> None:
    library.define("rms_norm" + schemas.XPU_SCHEMAS["rms_norm"])
    refresh()
    assert xpu._rms_norm_supported() is None
    args = (draw(7, 64), draw(64), 1e-6, None)
    assert why_not(rms_norm, "xpu", *args) is None
    assert why_not(rms_norm, "xpu", *args, True, True) == Reason.OP_MISSING


@pytest.mark.usefixtures("library")
def test_xpu_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(xpu, "PACKAGE", "normport_no_such_kernels")
    assert xpu._rms_norm_supported() == Reason.NOT_INSTALLED
    package = tmp_path / "normport_broken_kernels"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(xpu, "PACKAGE", package.name)
    assert xpu._rms_norm_supported() == Reason.CANNOT_LOAD
    (package / "_C.py").touch()
    assert xpu._rms_norm_supported() == Reason.OP_MISSING


def wheel(path: Path, strings: list[str], name: str = "vllm_xpu_kernels/_C.abi3.so") -> Path:
    with zipfile.ZipFile(path, "w") as made:
        made.writestr(name, b"\x7fELF\0" + b"\0".join(s.encode() for s in strings) + b"\0")
    return path


def test_a_wheels_schemas_are_read_from_its_file(tmp_path: Path) -> None:
    texts = [name + schema for name, schema in schemas.XPU_SCHEMAS.items()]
    good = wheel(tmp_path / "good.whl", [*texts, "rms_norm_quant(Tensor x) -> ()"])
    assert schemas.compare_wheel(good) == dict.fromkeys(schemas.XPU_SCHEMAS)
    changed = texts[0].replace("Tensor? weight", "Tensor weight")
    other = wheel(
        tmp_path / "other.whl", [changed, *texts[1:3], "fused_add_gemma_rms_norm(?) -> ()"]
    )
    assert schemas.compare_wheel(other) == {
        "rms_norm": Reason.SCHEMA_MISMATCH,
        "fused_add_rms_norm": None,
        "gemma_rms_norm": None,
        "fused_add_gemma_rms_norm": Reason.SCHEMA_MISMATCH,
    }
    none = wheel(tmp_path / "none.whl", [])
    assert set(schemas.compare_wheel(none).values()) == {Reason.OP_MISSING}


def test_a_file_without_kernels_is_an_error_with_a_sentence(tmp_path: Path) -> None:
    text = tmp_path / "text.whl"
    text.write_text("no wheel")
    foreign = wheel(tmp_path / "foreign.whl", [], name="other/thing.py")
    broken = tmp_path / "broken.whl"
    broken.write_bytes(struct.pack("<I", 0x04034B50) + b"\0" * 40)
    for file, sentence in (
        (text, "neither a wheel nor a Linux library"),
        (foreign, "holds 0 files named _C.abi3.so"),
        (broken, "neither a wheel nor a Linux library"),
        (tmp_path / "absent.whl", "cannot be read"),
    ):
        with pytest.raises(schemas.UnreadableWheel, match=sentence):
            schemas.read_schemas(file)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("offset", "wide"), [(False, False), (False, True), (True, True)])
def test_musa_rounds_once(dtype: torch.dtype, offset: bool, wide: bool) -> None:
    """With the CPU's ``F.rms_norm`` in place of torch_musa's."""
    torch.manual_seed(3)
    x = draw(7, 64, dtype=dtype)
    for weight in (None, draw(64, dtype=dtype)):
        assert why_not(rms_norm, "musa", x, weight, 1e-6, None, offset, wide) is None
        found = rms_norm.providers["musa"].run(x, weight, 1e-6, None, offset, wide)
        check_close(found, exact_norm(x, weight, 1e-6, offset))
        wanted = rms_norm.native(x, weight, 1e-6, None, offset, wide)
        if wide and dtype != torch.float32:
            assert (found != wanted).sum() <= 0.01 * x.numel()


def test_musa_leaves_what_would_round_in_another_order() -> None:
    x, weight = draw(7, 64), draw(64)
    assert why_not(rms_norm, "musa", x, weight, 1e-6, None, True, False) == Reason.ROUNDING
    assert why_not(rms_norm, "musa", x, weight.float(), 1e-6) == Reason.WEIGHT_DTYPE
    assert why_not(rms_norm, "musa", x.float(), weight, 1e-6) == Reason.WEIGHT_DTYPE
    assert why_not(rms_norm, "musa", x, weight, 1e-6, 8) == Reason.VARIANCE_SIZE
    assert why_not(rms_norm, "musa", x[:0], weight, 1e-6) == Reason.EMPTY
    assert why_not(fused_add_rms_norm, "musa", x, x, None, 1e-6) == Reason.WEIGHT_MISSING
    assert why_not(fused_add_rms_norm, "musa", x, x[:2], weight, 1e-6) == Reason.RESIDUAL
    assert (
        why_not(fused_add_rms_norm, "musa", x, x, weight, 1e-6, None, True, True) == Reason.OFFSET
    )
    assert why_not(fused_add_rms_norm, "musa", x, x, weight, 1e-6, 8) == Reason.VARIANCE_SIZE


def test_musa_uses_the_fused_op_of_vllm_musa_where_it_is(
    library: torch.library.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(torch, "musa"):
        assert musa.supported() == Reason.NOT_INSTALLED
        monkeypatch.setattr(torch, "musa", SimpleNamespace(), raising=False)
    assert musa.supported() is None
    assert musa.fused_supported() == Reason.OP_MISSING
    library.define(musa.FUSED + musa.SCHEMA)
    library.impl(musa.FUSED, fused(False), "CPU")
    assert musa.fused_supported() is None
    x, residual, weight = draw(7, 64), draw(7, 64), draw(64)
    assert why_not(fused_add_rms_norm, "musa", x, residual, weight, 1e-6) is None
    normed, total = fused_add_rms_norm.providers["musa"].run(x, residual, weight, 1e-6)
    assert ran == ["fused"]
    assert torch.equal(total, x + residual)
    check_close(normed, exact_norm(total, weight, 1e-6), 2)


def test_vllms_cpu_op_is_used_only_where_it_means_the_same(library: torch.library.Library) -> None:
    assert vllm_cpu.supported() == Reason.OP_MISSING
    library.define("rms_norm" + vllm_cpu.SCHEMA)
    library.impl("rms_norm", plain(False), "CPU")
    assert vllm_cpu.supported() is None
    x, half = draw(7, 64, dtype=torch.float32), draw(7, 64, dtype=torch.float16)
    weight = draw(64, dtype=torch.float32)
    assert why_not(rms_norm, "vllm_cpu", x, weight, 1e-6) is None
    assert why_not(rms_norm, "vllm_cpu", half, weight.half(), 1e-6, None, False, True) is None
    check_close(rms_norm.providers["vllm_cpu"].run(x, weight, 1e-6), exact_norm(x, weight, 1e-6))
    for args, reason in (
        ((half, weight.half(), 1e-6), Reason.ROUNDING),
        ((x.bfloat16(), None, 1e-6), Reason.ROUNDING),
        ((x, weight, 1e-6, None, True, True), Reason.OFFSET),
        ((x, weight, 1e-6, 8), Reason.VARIANCE_SIZE),
        ((x[:, :33].contiguous(), None, 1e-6), Reason.SIZE),
        ((x[:, :32], None, 1e-6), Reason.LAYOUT),
        ((x[:0], None, 1e-6), Reason.EMPTY),
        ((x, weight.half(), 1e-6), Reason.WEIGHT_DTYPE),
    ):
        assert why_not(rms_norm, "vllm_cpu", *args) == reason


def test_ipex_is_not_imported_beside_another_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ipex.why_not_version("2.8.0", "2.8.1+cpu") is None
    assert ipex.why_not_version("2.8.0", "2.13.0+cpu") == Reason.CANNOT_LOAD
    monkeypatch.setattr(ipex, "DISTRIBUTION", "normport-no-such-extension")
    assert ipex.supported() == Reason.NOT_INSTALLED
    monkeypatch.setattr(ipex, "DISTRIBUTION", "normport")
    assert ipex.supported() == Reason.CANNOT_LOAD


def test_ipex_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    ipex._function.cache_clear()
    monkeypatch.setattr(ipex, "why_not_version", lambda *_: None)
    monkeypatch.setattr(ipex, "DISTRIBUTION", "normport")
    monkeypatch.setitem(sys.modules, "intel_extension_for_pytorch", None)
    assert ipex.supported() == Reason.CANNOT_LOAD
    monkeypatch.setitem(sys.modules, "intel_extension_for_pytorch", ModuleType("empty"))
    assert ipex.supported() == Reason.OP_MISSING


def test_ipex_leaves_what_its_norm_cannot_compute() -> None:
    x, weight = draw(7, 64), draw(64)
    assert why_not(rms_norm, "ipex", x, weight, 1e-6) is None
    for args, reason in (
        ((x, None, 1e-6), Reason.WEIGHT_MISSING),
        ((x, weight.float(), 1e-6), Reason.WEIGHT_DTYPE),
        ((x, weight, 1e-6, 8), Reason.VARIANCE_SIZE),
        ((x, weight, 1e-6, None, True, True), Reason.OFFSET),
        ((draw(64, 7).t(), draw(64), 1e-6), Reason.LAYOUT),
        ((x[:0], weight, 1e-6), Reason.EMPTY),
        ((x.to("meta"), weight.to("meta"), 1e-6), Reason.OTHER_PLATFORM),
    ):
        assert why_not(rms_norm, "ipex", *args) == reason
