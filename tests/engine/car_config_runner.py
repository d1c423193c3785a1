"""Build real vLLM configs under the test platform and write down what came out.

    python car_config_runner.py FOLDER OUT.json

FOLDER gets one folder per model, with its config.json alone. The tests draw the conclusions.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import car_configs
import vllm.logger
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models import ModelRegistry, qwen3_5
from vllm.utils.argparse_utils import FlexibleArgumentParser

from normport.layers.car_rmsnorm.reading import read_vllm

COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
            "input_activations": {
                "num_bits": 8,
                "type": "float",
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}
MODELS = {
    "dense": car_configs.dense(),
    "dense-text": {
        **car_configs.text_only(car_configs.dense()),
        "architectures": ["Qwen3_5ForCausalLM"],
    },
    "dense-fp8": car_configs.quantized(car_configs.dense(), car_configs.FP8),
    "dense-ct": car_configs.quantized(car_configs.dense(), COMPRESSED),
    "moe": car_configs.moe(),
    "moe-fp8": car_configs.quantized(car_configs.moe(), car_configs.FP8),
    "small": car_configs.dense(hidden_size=4096, num_attention_heads=16),
}
OFF = "-cc.pass_config.fuse_allreduce_rms=False"
ON = "-cc.pass_config.fuse_allreduce_rms=True"
CASES: dict[str, tuple[str, int, list[str]]] = {
    "dense": ("dense", 2, []),
    "dense-text": ("dense-text", 2, []),
    "dense-fp8": ("dense-fp8", 2, []),
    "dense-ct": ("dense-ct", 2, []),
    "moe": ("moe", 4, []),
    "moe-fp8": ("moe-fp8", 4, []),
    "small": ("small", 2, []),
    "tp1": ("dense", 1, []),
    "tp4": ("dense", 4, []),
    "tp8": ("moe", 8, []),
    "pp2": ("dense", 2, ["--pipeline-parallel-size", "2"]),
    "fp16": ("dense", 2, ["--dtype", "float16"]),
    "off": ("dense", 2, [OFF]),
    "off-ends": ("dense", 2, [OFF, "-cc.compile_ranges_endpoints=[100,200]"]),
    "off-merged": (
        "dense",
        2,
        ["-cc.mode=3", OFF, "-cc.cudagraph_mode=FULL_DECODE_ONLY", "-cc.compile_sizes=[4]"],
    ),
    "off-json": (
        "dense",
        2,
        [
            "--compilation-config",
            '{"pass_config": {"fuse_allreduce_rms": false}, "mode": 3, '
            '"cudagraph_mode": "FULL_DECODE_ONLY"}',
        ],
    ),
    "off-part-json": (
        "dense",
        2,
        [
            "-cc.mode=3",
            '-cc.pass_config={"fuse_allreduce_rms": false}',
            "-cc.cudagraph_mode",
            "FULL_DECODE_ONLY",
        ],
    ),
    "off-beside-json": (
        "dense",
        2,
        [OFF, "--compilation-config", '{"mode": 3, "cudagraph_mode": "FULL_DECODE_ONLY"}'],
    ),
    "off-beside-long": ("dense", 2, ["--compilation-config.mode=3", OFF]),
    "null": ("dense", 2, ["-cc.pass_config.fuse_allreduce_rms=null"]),
    "on": ("dense", 2, [ON]),
    "on-outside": ("small", 2, [ON]),
    "on-limit": ("dense", 2, [ON, "-cc.pass_config.fi_allreduce_fusion_max_size_mb=1"]),
    "eager": ("dense", 2, ["--enforce-eager"]),
    "on-eager": ("dense", 2, [ON, "--enforce-eager"]),
    "O0": ("dense", 2, ["-O0"]),
    "O1": ("dense", 2, ["-O1"]),
    "mode": ("dense", 2, ["-cc.mode=2"]),
    "backend": ("dense", 2, ["-cc.backend=eager"]),
    "ends": ("dense", 2, ["-cc.compile_ranges_endpoints=[16,100,512]"]),
    "ends-odd": ("dense", 2, ["-cc.compile_ranges_endpoints=[512,16,100,16,1,99999]"]),
    "ends-odd-off": ("dense", 2, [OFF, "-cc.compile_ranges_endpoints=[512,16,16,1]"]),
    "additional": ("dense", 2, ["--additional-config", '{"theirs": 1}']),
    "large": ("dense", 2, ["--max-num-batched-tokens", "16384"]),
    "large-ends": (
        "dense",
        2,
        ["--max-num-batched-tokens", "16384", "-cc.compile_ranges_endpoints=[63,9000,99999]"],
    ),
    "domain": ("dense", 2, ["--max-num-batched-tokens", "8192"]),
    "tiny-batch": ("dense", 2, ["--max-num-batched-tokens", "64", "--max-model-len", "64"]),
}


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def build(model: Path, tp: int, options: list[str]) -> Any:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    arguments = ["--model", str(model), "--tensor-parallel-size", str(tp), "--skip-tokenizer-init"]
    arguments += ["--load-format", "dummy", "--language-model-only"]
    if "--max-model-len" not in options:
        arguments += ["--max-model-len", "2048"]
    args = EngineArgs.from_cli_args(parser.parse_args([*arguments, *options]))
    parsed = args.compilation_config
    given = {
        "flag": parsed.pass_config.fuse_allreduce_rms,
        "mode": None if parsed.mode is None else int(parsed.mode),
        "cudagraph_mode": None if parsed.cudagraph_mode is None else parsed.cudagraph_mode.name,
    }
    # A line that was said for one configuration is to be said for the next as well.
    vllm.logger._print_info_once.cache_clear()
    config = args.create_engine_config()
    # As vLLM does for a model within a model, and for a draft model.
    config.with_hf_config(config.model_config.hf_config)
    return given | {"additional": args.additional_config}, config


def describe(config: Any) -> dict[str, Any]:
    compilation = config.compilation_config
    read = read_vllm(config)
    return {
        "flag": compilation.pass_config.fuse_allreduce_rms,
        "endpoints": compilation.compile_ranges_endpoints,
        "ranges": [[part.start, part.end] for part in compilation.get_compile_ranges()],
        "mode": int(compilation.mode),
        "limit_mb": compilation.pass_config.fi_allreduce_fusion_max_size_mb,
        "hash": config.compute_hash(),
        "additional": config.additional_config,
        "family": read.family,
        "size": read.size,
        "precision": read.precision,
        "hidden": read.hidden_size,
        "dtype": read.dtype,
    }


def main(folder: Path, out: Path) -> None:
    for name, model in MODELS.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps(model))
    heard = Heard()
    log = logging.getLogger("vllm.normport.car_rmsnorm")
    log.addHandler(heard)
    log.setLevel(logging.INFO)
    # By class, or vLLM would look at each in one more process that imports all of it.
    for known in (
        qwen3_5.Qwen3_5ForCausalLM,
        qwen3_5.Qwen3_5ForConditionalGeneration,
        qwen3_5.Qwen3_5MoeForConditionalGeneration,
    ):
        ModelRegistry.register_model(known.__name__, known)
    seen: dict[str, Any] = {}
    for name, (model, tp, options) in CASES.items():
        heard.lines.clear()
        try:
            given, config = build(folder / model, tp, options)
        except (ValueError, RuntimeError, AttributeError, ImportError) as error:
            seen[name] = {"error": f"{type(error).__name__}: {error}"}
            continue
        seen[name] = {**describe(config), "parsed": given, "said": list(heard.lines)}
    out.write_text(json.dumps(seen, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
