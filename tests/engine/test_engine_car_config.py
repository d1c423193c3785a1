"""The default in real vLLM configs, from real command lines, under the test platform."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_trees import environment

pytestmark = pytest.mark.engine

HERE = Path(__file__).parent
TIMEOUT_S = 900
DENSE_ENDS = [3, 4, 15, 16, 63]
MOE_ENDS = [15, 16, 63, 64]


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    home = tmp_path_factory.mktemp("car-config")
    path = os.pathsep.join(map(str, (HERE / "car_plugin", HERE.parent)))
    done = subprocess.run(
        [sys.executable, HERE / "car_config_runner.py", home / "models", home / "seen.json"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(home, None) | {"PYTHONPATH": path, "NORMPORT_CAR_TEST": '"contract"'},
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads((home / "seen.json").read_text())
    assert {name: seen["error"] for name, seen in found.items() if "error" in seen} == {}
    return found


@pytest.mark.parametrize(
    ("name", "size", "precision", "ends"),
    [
        ("dense", "27B", "BF16", DENSE_ENDS),
        ("dense-text", "27B", "BF16", DENSE_ENDS),
        ("dense-fp8", "27B", "FP8", DENSE_ENDS),
        ("dense-ct", "27B", "FP8", DENSE_ENDS),
        ("moe", "35B-A3B", "BF16", MOE_ENDS),
        ("moe-fp8", "35B-A3B", "FP8", MOE_ENDS),
    ],
)
def test_a_supported_model_is_on_by_default(
    configs: dict[str, dict[str, Any]], name: str, size: str, precision: str, ends: list[int]
) -> None:
    seen = configs[name]
    assert (seen["size"], seen["precision"], seen["dtype"]) == (size, precision, "bfloat16")
    assert seen["flag"] is True
    assert seen["endpoints"][: len(ends)] == ends
    (line,) = seen["said"]
    assert line.startswith("CAR-RMSNorm: on, by default. ")


@pytest.mark.parametrize("name", ["small", "tp1", "tp4", "tp8", "pp2", "fp16"])
def test_what_is_outside_the_contract_is_off(configs: dict[str, dict[str, Any]], name: str) -> None:
    seen = configs[name]
    assert seen["flag"] is False
    assert len(seen["endpoints"]) == 1
    (line,) = seen["said"]
    assert line.startswith("CAR-RMSNorm: off, by default. Native: ")


def test_false_is_kept_and_changes_no_range(configs: dict[str, dict[str, Any]]) -> None:
    assert configs["off"]["flag"] is False
    assert configs["off"]["ranges"] == configs["small"]["ranges"]
    assert configs["off"]["limit_mb"] is None
    assert configs["off-ends"]["ranges"][:2] == [[1, 100], [101, 200]]
    assert "as requested" in configs["off"]["said"][0]


def test_the_switch_merges_with_other_settings(configs: dict[str, dict[str, Any]]) -> None:
    # As parsed: the CPU platform has no CUDA graphs to keep.
    for name in ("off-merged", "off-json", "off-part-json"):
        seen = configs[name]
        merged = [seen["parsed"][key] for key in ("flag", "mode", "cudagraph_mode")]
        assert merged == [False, 3, "FULL_DECODE_ONLY"], name
        assert seen["flag"] is False


def test_the_switch_does_not_merge_with_another_spelling(
    configs: dict[str, dict[str, Any]],
) -> None:
    # vLLM makes one option of those that begin alike, and of two options the last counts. The page
    # says so, and ab-run refuses such flags.
    for name in ("off-beside-json", "off-beside-long"):
        parsed = configs[name]["parsed"]
        assert (parsed["flag"], parsed["mode"], parsed["cudagraph_mode"]) == (False, None, None)


def test_null_is_unspecified(configs: dict[str, dict[str, Any]]) -> None:
    assert configs["null"]["said"] == configs["dense"]["said"]


def test_each_start_says_one_line_whatever_is_derived_from_its_config(
    configs: dict[str, dict[str, Any]],
) -> None:
    assert {name: len(seen["said"]) for name, seen in configs.items()} == dict.fromkeys(configs, 1)


def test_the_line_names_the_endpoints_that_vllm_keeps(configs: dict[str, dict[str, Any]]) -> None:
    for name in ("dense", "moe", "ends", "ends-odd", "large", "large-ends", "tiny-batch"):
        *ends, _ = configs[name]["endpoints"]
        assert configs[name]["said"][0].endswith(f"endpoints: {', '.join(map(str, ends))}."), name


def test_the_users_own_settings_are_not_written_to(configs: dict[str, dict[str, Any]]) -> None:
    seen = configs["additional"]
    assert seen["parsed"]["additional"] == {"theirs": 1}
    assert list(seen["additional"]) == ["theirs", "normport_car_rmsnorm"]
    assert configs["off"]["additional"] == {}


def test_true_is_kept_also_where_it_does_nothing(configs: dict[str, dict[str, Any]]) -> None:
    assert configs["on"]["flag"] is True
    assert configs["on"]["endpoints"] == configs["dense"]["endpoints"]
    assert configs["on-outside"]["flag"] is True
    assert configs["on-outside"]["ranges"] == configs["small"]["ranges"]
    assert "it does nothing. Native: " in configs["on-outside"]["said"][0]
    assert configs["on-eager"]["flag"] is True
    assert "vLLM runs eagerly" in configs["on-eager"]["said"][0]


def test_an_explicit_limit_is_the_users(configs: dict[str, dict[str, Any]]) -> None:
    seen = configs["on-limit"]
    assert seen["limit_mb"] == 1
    assert 2**20 // (5120 * 2) in seen["endpoints"], "vLLM's own endpoint is kept"
    assert set(DENSE_ENDS) <= set(seen["endpoints"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("eager", "vLLM runs eagerly"),
        ("O0", "optimization level 0"),
        ("mode", "runs no fusion passes"),
        ("backend", "runs no fusion passes"),
    ],
)
def test_where_vllm_does_not_compile_it_is_off(
    configs: dict[str, dict[str, Any]], name: str, words: str
) -> None:
    assert configs[name]["flag"] is False
    assert words in configs[name]["said"][0]


def test_every_level_above_zero_is_on(configs: dict[str, dict[str, Any]]) -> None:
    assert configs["O1"]["flag"] is True


def test_the_users_endpoints_are_kept(configs: dict[str, dict[str, Any]]) -> None:
    largest = configs["dense"]["endpoints"][-1]
    assert configs["ends"]["endpoints"] == sorted({*DENSE_ENDS, 100, 512, largest})
    # Unsorted, twice, and where no range can end.
    assert configs["ends-odd"]["endpoints"] == configs["ends"]["endpoints"]
    assert configs["ends-odd-off"]["endpoints"] == [16, 16, 512, largest], "as vLLM leaves them"


def test_a_batch_beyond_the_domain_gets_its_end_as_an_endpoint(
    configs: dict[str, dict[str, Any]],
) -> None:
    assert configs["large"]["ranges"][-2:] == [[64, 8192], [8193, 16384]]
    assert configs["domain"]["ranges"][-1] == [64, 8192]
    assert configs["large-ends"]["ranges"][-3:] == [[64, 8192], [8193, 9000], [9001, 16384]]


def test_a_small_batch_drops_what_lies_beyond_it(configs: dict[str, dict[str, Any]]) -> None:
    assert configs["tiny-batch"]["ranges"][-1] == [64, 64]


def test_the_compile_cache_key_tells_on_from_off(configs: dict[str, dict[str, Any]]) -> None:
    assert configs["dense"]["hash"] != configs["off"]["hash"]
