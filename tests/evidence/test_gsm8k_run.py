"""``normport gsm8k`` against a small server: prompts, results, faults, and going on."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from evidence_sources import RECORDS, Command
from fake_server import MODEL, FakeServer

from normport.tools.gsm8k.server import Server

FAST = ("--data", "data.jsonl", "--num-questions", "3", "--retry-wait", "0.01")


@pytest.fixture
def smoke(normport: Command, server: FakeServer, folder: Path) -> Command:
    def command(*arguments: str | Path) -> Any:
        return normport("gsm8k", "--base-url", server.url, *FAST, *arguments)

    return command


def result(path: str = "gsm8k.json") -> Any:
    return json.loads(Path(path).read_text())


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def prompt(examples: list[tuple[str, str]], question: str) -> str:
    solved = "".join(f"Question: {q}\nAnswer: {a}\n\n" for q, a in examples)
    return f"{solved}Question: {question}\nAnswer:"


def test_a_result(smoke: Command, server: FakeServer) -> None:
    ran = smoke()
    assert ran.status == 0
    assert "strict-match     100.0% correct (3), 0 invalid" in ran.out
    assert ran.error == "Written to gsm8k.json.\n"  # no bar where stderr is no terminal
    written = result()
    assert written["complete"]
    assert written["run"]["model"] == MODEL
    assert written["run"]["server"] == server.url
    assert written["run"]["vllm_version"] == "0.29.0"
    assert written["run"]["patch_series"] == {"state": "unknown"}
    assert len(server.bodies) == 4  # one is the warm-up, which is not counted
    assert [q["index"] for q in written["questions"]] == [0, 1, 2]
    for question, sent, (_, answer) in zip(
        written["questions"], server.prompts[1:], RECORDS[5:8], strict=True
    ):
        assert question["prompt_sha256"] == digest(sent)
        assert question["output"] == f" {answer}"
        assert question["output_sha256"] == digest(f" {answer}")
        number = answer.split("#### ")[1]
        assert question["scores"]["vllm"] == {"answer": number, "verdict": "correct"}
        assert question["prompt_tokens"] == len(sent.split())
        assert question["output_tokens"] == len(answer.split())
        assert question["latency_ms"] / question["output_tokens"] == question["ms_per_token"]
        assert 0 < question["ttft_ms"] <= question["latency_ms"]
    speeds = [q["ms_per_token"] for q in written["questions"]]
    spread = written["summary"]["ms_per_token"]
    assert (spread["n"], spread["min"], spread["max"]) == (3, min(speeds), max(speeds))
    assert spread["mean"] == pytest.approx(sum(speeds) / 3)
    assert spread["sd"] > 0


def test_progress_on_a_terminal(smoke: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = smoke().error
    assert re.search(r"questions .*3/3 +[0-9.]+ /min +0:00:0\d", shown)


def test_requests_are_greedy(smoke: Command, server: FakeServer) -> None:
    assert smoke().status == 0
    for body in server.bodies:
        assert body["temperature"] == 0
        assert body["max_tokens"] == 256
        assert body["stop"] == ["Question:", "</s>", "<|im_end|>"]


def test_harness_prompts_draw_anew_for_each_question(smoke: Command, server: FakeServer) -> None:
    assert smoke("--examples", "data.jsonl", "--warmup", "0").status == 0
    draw = random.Random(1234)
    assert server.prompts == [prompt(draw.sample(RECORDS, 5), RECORDS[n][0]) for n in range(3)]


def test_vllm_prompts_have_the_first_records(smoke: Command, server: FakeServer) -> None:
    assert smoke("--style", "vllm", "--num-shots", "2", "--warmup", "0").status == 0
    assert server.prompts == [prompt(RECORDS[:2], RECORDS[n][0]) for n in (2, 3, 4)]
    assert server.bodies[0]["stop"] == ["Question", "Assistant:", "<|separator|>"]


def test_chat(smoke: Command, server: FakeServer) -> None:
    assert smoke("--chat").status == 0
    assert result()["summary"]["scores"]["strict-match"]["accuracy"] == 1
    assert server.bodies[0]["messages"][0]["role"] == "user"


@pytest.mark.parametrize("options", [(), ("--chat",)])
def test_a_server_that_does_not_stream(
    smoke: Command, server: FakeServer, options: tuple[str, ...]
) -> None:
    server.faults = ["whole"] * 4
    assert smoke(*options).status == 0
    assert result()["summary"]["scores"]["strict-match"]["accuracy"] == 1
    for question in result()["questions"]:
        assert (question["prompt_tokens"], question["output_tokens"]) == (7, 4)
        assert (question["finish_reason"], question["attempts"]) == ("length", 1)


def test_a_server_that_counts_no_tokens(smoke: Command, server: FakeServer) -> None:
    server.count_tokens = False
    ran = smoke()
    assert ran.status == 0
    assert "unknown: the server does not count tokens" in ran.out
    assert result()["questions"][0]["ms_per_token"] is None


def test_a_chat_answer_that_holds_no_message_is_no_empty_answer(
    smoke: Command, server: FakeServer
) -> None:
    server.faults = ["not chat"] * 2
    ran = smoke("--chat", "--retries", "1", "--warmup", "0")
    assert ran.status == 2
    assert "sent an event that is not as OpenAI's are; asked 2 times" in ran.error


@pytest.mark.parametrize("fault", [500, 503, 429, "truncate", "cut", "garbage", "error"])
def test_a_passing_fault_is_asked_again(smoke: Command, server: FakeServer, fault: Any) -> None:
    server.faults = [None, None, fault, fault]
    ran = smoke()
    assert ran.status == 0
    assert [q["attempts"] for q in result()["questions"]] == [1, 3, 1]
    assert ran.error.count("asking again in") == 2
    assert result()["summary"]["scores"]["strict-match"]["accuracy"] == 1


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (500, "answered with HTTP 500 (scripted 500); asked 2 times"),
        ("truncate", "ended its answer before it was complete; asked 2 times"),
        ("cut", "ended its answer before it was complete; asked 2 times"),
        ("garbage", "sent an event that is not JSON; asked 2 times"),
        ("shape", "sent an event that is not as OpenAI's are; asked 2 times"),
        ("half", "ended its answer before it was complete; asked 2 times"),
        ("error", "broke off its answer: EngineCore died; asked 2 times"),
        ("silent", "said nothing for 1.5 s (--timeout); asked 2 times"),
    ],
)
def test_a_lasting_fault_keeps_what_is_done(
    smoke: Command, server: FakeServer, fault: Any, said: str
) -> None:
    server.faults = [None, None, fault, fault]
    # Long enough for a busy machine, and waited for by the silent server's answers alone.
    ran = smoke("--retries", "1", "--timeout", "1.5" if fault == "silent" else "60")
    assert (ran.status, ran.out) == (2, "")
    assert ran.error.splitlines()[-1] == (
        f"error: {server.url} {said}; 1 of 3 questions are answered in gsm8k.json, and --resume "
        "goes on with it."
    )
    assert not result()["complete"]
    first = result()["questions"]
    server.released.set()

    went_on = smoke("--resume")
    assert went_on.status == 0
    assert result()["complete"]
    assert result()["questions"][:1] == first
    assert [q["index"] for q in result()["questions"]] == [0, 1, 2]
    assert result()["run"]["resumed_after"] == [1]
    assert [p.count("Question:") for p in server.prompts] == [6] * len(server.prompts)

    before = len(server.bodies)
    assert smoke("--resume").status == 0  # nothing is left to ask, not even for a warm-up
    assert len(server.bodies) == before
    assert result()["run"]["resumed_after"] == [1]


def test_an_interrupt_keeps_what_is_done(
    smoke: Command, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = Server.generate

    def interrupted(self: Server, *arguments: Any) -> Any:
        if len(server.bodies) == 2:  # the warm-up and a question
            raise KeyboardInterrupt
        return generate(self, *arguments)

    monkeypatch.setattr(Server, "generate", interrupted)
    ran = smoke()
    assert (ran.status, ran.out) == (130, "")
    assert ran.error == (
        "Interrupted; gsm8k.json has the answers so far, and --resume goes on with it.\n"
    )
    first = result()["questions"]
    assert len(first) == 1
    monkeypatch.setattr(Server, "generate", generate)
    assert smoke("--resume").status == 0
    assert result()["complete"]
    assert result()["questions"][:1] == first


def test_a_refusal_is_not_asked_again(smoke: Command, server: FakeServer) -> None:
    server.faults = [None, 400]
    ran = smoke()
    assert ran.status == 2
    assert ran.error.startswith(
        f"error: {server.url}/v1/completions answered with HTTP 400 (scripted 400); check"
    )
    assert len(server.bodies) == 2


def test_a_dead_server(normport: Command, folder: Path) -> None:
    with socket.socket() as taken:  # bound and not listening: nothing answers there
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        ran = normport("gsm8k", "--base-url", url, *FAST, "--retries", "2")
    assert (ran.status, ran.out) == (2, "")
    last = ran.error.splitlines()[-1]
    assert last.startswith(f"error: {url} does not answer ([Errno ")
    assert last.endswith("): is the server running?; asked 3 times.")
    assert not Path("gsm8k.json").exists()


def test_a_dead_server_is_noticed_before_the_data_set_is_fetched(
    normport: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: str, split: str) -> Any:
        pytest.fail(f"it fetched the {split} split")

    a_data_set(monkeypatch, load)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        ran = normport("gsm8k", "--base-url", url, "--retries", "0")
    assert ran.status == 2
    assert ran.error.startswith(f"error: {url} does not answer (")


KEY = "sk-secret-of-the-test"


@pytest.mark.parametrize("by", ["option", "variable", "URL"])
def test_a_server_that_wants_to_know_who_asks(
    normport: Command,
    server: FakeServer,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    by: str,
) -> None:
    basic = base64.b64encode(f"me:{KEY}".encode()).decode()
    server.wants = f"Basic {basic}" if by == "URL" else f"Bearer {KEY}"
    options = ["--api-key", KEY] if by == "option" else []
    if by == "variable":
        monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")  # as `$(cat FILE)` would not, but a file
    url = server.url.replace("//", f"//me:{KEY}@") if by == "URL" else server.url
    ran = normport("gsm8k", "--base-url", url, *FAST, *options)
    assert ran.status == 0, ran.error
    assert result()["complete"]
    assert result()["run"]["server"] == server.url
    assert KEY not in Path("gsm8k.json").read_text() + ran.out + ran.error
    # The server says what it was sent, as some do.
    server.wants = "something else"
    refused = normport("gsm8k", "--base-url", url, *FAST, *options, "--out", "other.json")
    assert refused.status == 2
    assert "answered with HTTP 401 (no: " in refused.error
    assert refused.error.endswith("check --api-key.\n")
    assert KEY not in refused.error
    assert not Path("other.json").exists()


@pytest.mark.parametrize("key", ["two words", "schlüssel", "tab\tin"])
def test_no_key(smoke: Command, server: FakeServer, key: str) -> None:
    ran = smoke("--api-key", key)
    assert ran.status == 2
    assert ran.error.startswith("error: The API key holds a character that no key has")
    assert key not in ran.error


@pytest.mark.parametrize(
    "text", [" one\u2028two\x85 three\n#### 9", " \U0001f350 pears\n#### 9", " \x1c#### 9"]
)
def test_text_with_ends_of_lines_and_pairs(smoke: Command, server: FakeServer, text: str) -> None:
    server.answer = lambda _: text
    server.raw = True  # in UTF-8, as vLLM does; else escaped, a pair of surrogates in two events
    for name in ("raw.json", "escaped.json"):
        assert smoke("--out", name).status == 0
        assert [q["output"] for q in result(name)["questions"]] == [text] * 3
        server.raw = False


def test_half_a_character(smoke: Command, server: FakeServer) -> None:
    server.answer = lambda _: " \ud83c pears"
    assert smoke().status == 0
    assert result()["questions"][0]["output"] == " \ufffd pears"


@pytest.mark.parametrize("usage", [{"completion_tokens": "9"}, {"completion_tokens": -1}, [], 7])
def test_tokens_counted_in_a_way_of_its_own(smoke: Command, server: FakeServer, usage: Any) -> None:
    server.usage = usage
    assert smoke().status == 0
    assert result()["questions"][0]["output_tokens"] is None


def test_a_wrong_model_name(smoke: Command, server: FakeServer) -> None:
    ran = smoke("--served-model", "huge")
    assert ran.status == 2
    assert ran.error == (f"error: {server.url} serves {MODEL}, not huge; check --served-model.\n")
    assert server.bodies == []


def test_a_wrong_model_name_where_no_list_is(smoke: Command, server: FakeServer) -> None:
    server.models = None
    server.faults = [404]
    ran = smoke("--served-model", "huge")
    assert ran.status == 2
    assert "answered with HTTP 404 (scripted 404); check --base-url and --served-model" in ran.error


def test_several_models(smoke: Command, server: FakeServer) -> None:
    server.models = {"data": [{"id": "a"}, {"id": "b"}]}
    assert smoke().error == f"error: {server.url} serves a, b; say which with --served-model.\n"
    assert smoke("--served-model", "b").status == 0
    assert server.bodies[0]["model"] == "b"


@pytest.mark.parametrize("models", [[], {"data": 1}, {"data": [{"name": "x"}]}, "text"])
def test_no_list_of_models(smoke: Command, server: FakeServer, models: Any) -> None:
    server.models = models
    assert smoke().error == (
        f"error: {server.url}/v1/models is not OpenAI's list of models; check --base-url.\n"
    )


def test_an_existing_result_is_kept(smoke: Command, server: FakeServer) -> None:
    Path("gsm8k.json").write_text("precious")
    assert "gsm8k.json exists: go on with it by --resume" in smoke().error
    assert "gsm8k.json is not JSON" in smoke("--resume").error
    assert Path("gsm8k.json").read_text() == "precious"
    assert server.bodies == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--max-tokens", "9"), "its max_tokens is 256 and not 9"),
        (("--style", "vllm"), "its stop is"),
        (("--num-questions", "1"), "more questions than are asked now"),
    ],
)
def test_only_the_same_run_is_gone_on_with(
    smoke: Command, arguments: tuple[str, ...], said: str
) -> None:
    assert smoke().status == 0
    before = Path("gsm8k.json").read_bytes()
    ran = smoke("--resume", *arguments)
    assert ran.status == 2
    assert said in ran.error
    assert Path("gsm8k.json").read_bytes() == before


def test_resuming_with_more_questions(smoke: Command) -> None:
    assert smoke().status == 0
    assert smoke("--resume", "--num-questions", "5").status == 0
    assert len(result()["questions"]) == 5


def test_changed_data_is_noticed(smoke: Command) -> None:
    assert smoke().status == 0
    text = Path("data.jsonl").read_text()
    Path("data.jsonl").write_text(text.replace("Ann has 7", "Bob has 7"))
    assert "another prompt for question 1" in smoke("--resume").error


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "data.jsonl holds no questions"),
        ("{}\n", "data.jsonl:1 lacks a text `question` or `answer`"),
        ("[1]\n", "data.jsonl:1 lacks a text"),
        ("{\n", "data.jsonl:1 is not JSON"),
        ('{"question": "\\ud83c", "answer": "#### 5"}\n', "data.jsonl:1 holds half a character"),
        ("[" * 100_000, "data.jsonl:1 is not JSON"),
        ('{"question": "q", "answer": "5"}\n', "does not end in `#### NUMBER`"),
        ('{"question": "q", "answer": "#### five"}\n', "does not end in `#### NUMBER`"),
        ('{"question": "q", "answer": "#### 5"}\n', "has no question left to ask"),
    ],
)
def test_data_that_cannot_be_used(smoke: Command, content: str, said: str) -> None:
    Path("data.jsonl").write_text(content)
    ran = smoke("--num-shots", "1")
    assert ran.status == 2
    assert said in ran.error


def test_data_that_is_not_there(smoke: Command) -> None:
    assert "none.jsonl cannot be read (No such file" in smoke("--data", "none.jsonl").error


def a_data_set(monkeypatch: pytest.MonkeyPatch, load: Any) -> None:
    module = ModuleType("datasets")
    module.load_dataset = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_the_data_set_by_default(
    normport: Command, server: FakeServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"question": q, "answer": a} for q, a in RECORDS]

    def load(name: str, config: str, split: str) -> Any:
        assert (name, config) == ("openai/gsm8k", "main")
        return {"train": rows[:6], "test": rows[6:]}[split]

    a_data_set(monkeypatch, load)
    assert normport("gsm8k", "--base-url", server.url, "--num-questions", "2").status == 0
    assert RECORDS[6][0] in server.prompts[-2]
    assert result()["run"]["examples"] == "openai/gsm8k train"


def test_a_data_set_that_cannot_be_loaded(
    normport: Command, server: FakeServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: str, split: str) -> Any:
        raise ConnectionError(f"no way to the {split} split\nand more")

    a_data_set(monkeypatch, load)
    ran = normport("gsm8k", "--base-url", server.url)
    assert ran.status == 2
    assert ran.error == (
        "error: The data set openai/gsm8k could not be loaded (no way to the test split); name a "
        "file with --data instead.\n"
    )


def test_the_real_datasets_library_without_a_hub(server: FakeServer, folder: Path) -> None:
    pytest.importorskip("datasets", reason="only `datasets` itself tells how it fails")
    command = f"from normport.tools.cli import main; main(['gsm8k', '--base-url={server.url}'])"
    ran = subprocess.run(
        [sys.executable, "-c", command],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder), "USE_TORCH": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: The data set openai/gsm8k could not be loaded (")
    assert ran.stderr.count("\n") == 1


def test_without_the_datasets_library(
    normport: Command, server: FakeServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    ran = normport("gsm8k", "--base-url", server.url)
    assert ran.error.startswith("error: datasets is not installed, which openai/gsm8k is loaded")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Name either a server with --base-url or a checkpoint with --model"),
        (("--model", "x", "--base-url", "http://x"), "Name either a server"),
        (("--model", "x", "--chat"), "are about a server"),
        (("--model", "x"), "x is no checkpoint"),
        (("--model", "x", "--engine-args", "["), "--engine-args is not JSON"),
        (("--model", "x", "--engine-args", "[]"), "--engine-args is no JSON object"),
        (("--base-url", "http://x", "--engine-args", "{}"), "--engine-args is for --model"),
        (("--base-url", "localhost:8000"), "localhost:8000 is no URL of a server"),
        (("--base-url", "http://"), "http:// is no URL of a server"),
        (("--base-url", "http://h:x"), "http://h:x is no URL of a server"),
        (("--base-url", "http://x", "--package", "p"), "name that with --series"),
        (("--base-url", "http://x", "--series", "p"), "name its vllm folder with --package"),
    ],
)
def test_options_that_do_not_fit(
    normport: Command, folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    ran = normport("gsm8k", *FAST, *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert said in ran.error
    assert ran.error.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "state"),
    [
        (("old", "old"), "absent"),
        (("new", "new"), "applied"),
        (("new", "old"), "partial"),
        (("new", "mine"), "other"),
        (("new", None), "other"),
    ],
)
def test_the_patch_state_of_the_servers_vllm(
    smoke: Command, folder: Path, content: tuple[str | None, ...], state: str
) -> None:
    package = folder / "site" / "vllm"
    package.mkdir(parents=True)
    names = ("a.py", "b.py")
    for name, text in zip(names, content, strict=True):
        if text is not None:
            (package / name).write_text(text)
    files = [{"path": f"vllm/{n}", "before": digest("old"), "after": digest("new")} for n in names]
    files.append({"path": "tests/t.py", "before": None, "after": digest("test")})
    entry = {
        "file": "0001.patch",
        "order": 1,
        "subject": "",
        "reason": "",
        "droppable": "",
        "sha256": "",
        "files": [{"adds": [], "removes": [], **file} for file in files],
        "evidence": None,
    }
    (folder / "manifest.json").write_text(
        json.dumps(
            {
                "schema": 1,
                "release": "0.29.0",
                "wheel_sha256": None,
                "base_commit": None,
                "patches": [entry],
                "optional": [],
                "obsolete": [],
                "evidence": {},
            }
        )
    )
    assert smoke("--series", ".", "--package", package).status == 0
    assert result()["run"]["patch_series"]["state"] == state
