"""The command: exit code, final line and result.json say the same, in every case."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from privaudit._samples import load
from tests.unit.cli_models import mlp
from tests.unit.command import Command, environment, privaudit

MODELS = Path(__file__).with_name("cli_models.py")
MLP = ("audit", "--model", "model.py:mlp", "--images", "images", "--batch-size", "1")
CONV = ("audit", "--model", "model.py:conv", "--images", "images")
ONLY = ("--attacks", "closed_form")


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "model.py").write_bytes(MODELS.read_bytes())
    _images(folder / "images", 2)
    (folder / "empty").mkdir()
    (folder / "broken.py").write_text("def (\n")
    running = Command(folder)
    assert running(*MLP, "--out", "leaky").code == 1
    return running


@pytest.fixture
def leaky(command: Command) -> Path:
    """A folder with the result of a model that leaks."""
    return command.folder / "leaky"


def _images(folder: Path, count: int, mode: str = "RGB") -> None:
    folder.mkdir()
    for index, picture in enumerate(load(count, (32, 32))):
        picture.convert(mode).save(folder / f"{index}.png")


def result_of(folder: Path) -> dict[str, Any]:
    data = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data


GENEROUS = ("--max-ssim", "1", "--limit", "ms_ssim=1")
UNMEASURED = "token_accuracy=.5"
"""Of a metric that says nothing about images."""
AUDITS = {
    "a leak": (MLP, "leaks", 1),
    "a leak, within generous limits": (
        (*MLP, *GENEROUS), "no leak found", 0),
    "a limit that nobody measured": (
        (*MLP, *GENEROUS, "--limit", UNMEASURED), "inconclusive", 3),
    "mixed precision": (
        (*MLP, *ONLY, "--autocast", "bfloat16"), "leaks", 1),
    "labels not given to the attacker": ((*MLP, "--infer-labels"), "leaks", 1),
    "no gradient": (
        ("audit", "--model", "model.py:dead", "--images", "images", "--batch-size",
         "1", *ONLY), "inconclusive", 3),
    "no time": ((*MLP, "--budget", ".001"), "inconclusive", 3),
    "nothing applies": ((*CONV, *ONLY), "not run", 4),
}  # fmt: skip


@pytest.mark.parametrize("name", AUDITS)
def test_line_code_and_result_agree(command: Command, name: str) -> None:
    arguments, word, code = AUDITS[name]
    out = command.folder / f"audit-{list(AUDITS).index(name)}"
    done = command(*arguments, "--out", out)
    assert done.verdict == (word, code), done.stderr
    assert done.code == code
    assert done.stdout == f"{done.line}\n"
    verdict = result_of(out)["verdict"]
    assert verdict["word"] == word
    assert verdict["exit_code"] == code
    assert verdict["line"] == done.line
    assert (out / "report.html").is_file()
    assert "Warning" not in done.stderr
    gated = command("gate", out)
    assert (gated.code, gated.line) == (code, done.line)


def test_local_steps_reach_the_result(command: Command) -> None:
    out = command.folder / "steps"
    options = ("--local-steps", "2", "--lr", ".1", "--momentum", ".5")
    done = command(*MLP, *ONLY, *options, "--out", out)
    assert done.code == 4, done.stderr
    client = result_of(out)["config"]["client"]
    assert (client["local_steps"], client["lr"], client["momentum"]) == (2, 0.1, 0.5)
    assert result_of(out)["preflight"]["loss_at_truth"] < 1e-5


REFUSED = {
    "steps without lr": ((*MLP, "--local-steps", "2"), 2, "Client.lr"),
    "adamw steps": ((*MLP, "--local-steps", "2", "--lr", "1", "--optimizer", "adamw"),
                    2, "one local step of AdamW"),
    "rate": ((*MLP, "--lr", "0"), 2, "--lr: expected a number above 0"),
    "momentum": ((*MLP, "--momentum", "1"), 2, "--momentum: expected a number from 0"),
    "unknown option": ((*MLP, "--no-such"), 2, "No such option"),
    "missing option": (("audit", "--images", "images"), 2, "--model"),
    "module": (("audit", "--model", "nowhere:f", "--images", "images"), 2, "nowhere"),
    "file": (("audit", "--model", "no.py:f", "--images", "images"), 2, "no file"),
    "no factory": (("audit", "--model", "model.py", "--images", "images"), 2,
                   "path.py:factory"),
    "factory": (("audit", "--model", "model.py:f", "--images", "images"), 2, "It has:"),
    "argument": (("audit", "--model", "model.py:needs_an_argument", "--images",
                  "images"), 2, "without arguments, got TypeError"),
    "raises": (("audit", "--model", "model.py:raises", "--images", "images"), 2,
               "weights of the teacher"),
    "leaves": (("audit", "--model", "model.py:leaves", "--images", "images"), 2,
               "SystemExit"),
    "not a module": (("audit", "--model", "model.py:no_module", "--images", "images"),
                     2, "returns an nn.Module, got str"),
    "syntax": (("audit", "--model", "broken.py:f", "--images", "images"), 2,
               "broken.py, line 1"),
    "mean without std": ((*MLP, "--mean", ".5"), 2, "mean and std together"),
    "mean, a word": ((*MLP, "--mean", "red", "--std", "1"), 2, "--mean"),
    "mean of two": ((*MLP, "--mean", ".5,.5", "--std", "1,1"), 2, "3 channel"),
    "limit without a metric": ((*MLP, "--limit", ".5"), 2, "metric=number"),
    "limit, a word": ((*MLP, "--limit", "ssim=low"), 2, "numbers"),
    "limit of nothing": ((*MLP, "--limit", "beauty=.5"), 2, "re_identification"),
    "limit not finite": ((*MLP, "--max-ssim", "nan"), 2, "finite"),
    "autocast": ((*MLP, "--autocast", "float8"), 2, "--autocast"),
    "batch of none": ((*MLP, "--batch-size", "0"), 2, "--batch-size"),
    "budget": ((*MLP, "--budget", "ample"), 2, "quick, standard, thorough"),
    "budget of none": ((*MLP, "--budget", "0"), 2, "above 0"),
    "seed": ((*MLP, "--seed", "-1"), 2, "--seed"),
    "attack": ((*MLP, "--attacks", "guess"), 2, "closed_form"),
    "size": ((*MLP, "--size", "big"), 2, "HEIGHTxWIDTH"),
    "size of none": ((*MLP, "--size", "0"), 2, "HEIGHTxWIDTH"),
    "image mode": ((*MLP, "--image-mode", "CMYK"), 2, "--image-mode"),
    "place": (("audit", "--model", "model.py:mlp", "--images", "nowhere"), 2,
              "a file or folder"),
    "labels": ((*MLP, "--labels", "nowhere.csv"), 2, "--labels"),
    "weights": ((*MLP, "--weights", "nowhere.pt"), 2, "no file"),
    "no images": (("audit", "--model", "model.py:mlp", "--images", "empty"), 4, ".png"),
    "leaves in the step": (("audit", "--model", "model.py:Leaves", "--images",
                            "images"), 3, "sys.exit"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_audited_says_so(command: Command, name: str) -> None:
    arguments, code, text = REFUSED[name]
    done = command(*arguments, "--out", "refused")
    word = {2: "error", 3: "inconclusive", 4: "not run"}[code]
    assert done.verdict == (word, code), done.stderr
    assert done.code == code
    assert text in done.line
    assert "Traceback" not in done.stderr
    assert not (command.folder / "refused").exists()


@pytest.mark.parametrize("model", ["NotASquare", "Broken"])
def test_a_step_that_fails_is_the_models_fault(command: Command, model: str) -> None:
    source = "\nclass Broken(Functional):\n    def forward(self, x): return {}['a']\n"
    (command.folder / "failing.py").write_text(MODELS.read_text() + source)
    spec = f"failing.py:{model}"
    done = command("audit", "--model", spec, "--images", "images", "--out", "failing")
    assert done.code != 1, done.stderr
    assert done.verdict == ("error", 2)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("out", ["report.docx", "out.v1", "images/0.png", "model.py"])
def test_a_place_of_another_kind_is_refused_beforehand(
    command: Command, out: str
) -> None:
    done = command(*MLP, "--out", out)
    assert done.verdict == ("error", 2)
    assert "--out" in done.line


def test_a_file_where_the_folder_should_go(command: Command) -> None:
    (command.folder / "taken").touch()
    done = command(*MLP, "--out", "taken")
    assert done.verdict == ("error", 2)
    assert "--out" in done.line


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "damaged or truncated"),
        ('{"schema_version": "1", "verdict": {"wo', "damaged or truncated"),
        ('{"schema_version": "0"}', "schema version 1, got '0'"),
        ("[]", "schema version 1"),
        ('{"schema_version": "1"}', "privaudit schema"),
        ("<html>", "damaged or truncated"),
    ],
)
def test_a_result_that_cannot_be_read_is_never_gated(
    command: Command, tmp_path: Path, text: str, why: str
) -> None:
    (tmp_path / "result.json").write_text(text)
    for done in (command("gate", tmp_path), command("report", tmp_path)):
        assert done.code == 2
        assert why in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_a_result_cut_anywhere_is_never_gated(
    command: Command, leaky: Path, tmp_path: Path
) -> None:
    whole = (leaky / "result.json").read_bytes()
    for share in (0.1, 0.5, 0.99):
        (tmp_path / "result.json").write_bytes(whole[: int(share * len(whole))])
        assert command("gate", tmp_path).verdict == ("error", 2)
    assert command("gate", tmp_path / "nowhere").verdict == ("error", 2)


def test_the_gate_has_limits_of_its_own(command: Command, leaky: Path) -> None:
    before = (leaky / "result.json").read_bytes()
    assert command("gate", leaky).verdict == ("leaks", 1)
    assert command("gate", leaky, *GENEROUS).verdict == ("no leak found", 0)
    assert command("gate", leaky, "--max-ssim", "1").verdict == ("leaks", 1)
    limits = ("--limit", "ssim=1", "--limit", "ms_ssim=1")
    assert command("gate", leaky / "result.json", *limits).code == 0
    unmeasured = (*GENEROUS, "--limit", UNMEASURED)
    assert command("gate", leaky, *unmeasured).verdict == ("inconclusive", 3)
    assert command("gate", leaky, "--limit", "beauty=1").verdict == ("error", 2)
    assert (leaky / "result.json").read_bytes() == before
    assert result_of(leaky)["verdict"]["word"] == "leaks"


def test_gate_and_report_do_without_the_pictures(
    command: Command, leaky: Path, tmp_path: Path
) -> None:
    (tmp_path / "result.json").write_bytes((leaky / "result.json").read_bytes())
    assert command("gate", tmp_path).verdict == ("leaks", 1)
    assert command("report", tmp_path).code == 0
    assert "not available" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_report_is_written_again(
    command: Command, leaky: Path, tmp_path: Path
) -> None:
    done = command("report", leaky, "--out", tmp_path / "page.html")
    assert (done.code, done.stdout) == (0, "")
    first = (leaky / "report.html").read_bytes()
    assert (tmp_path / "page.html").read_bytes() == first
    (leaky / "report.html").unlink()
    assert command("report", leaky).code == 0
    assert (leaky / "report.html").read_bytes() == first


def test_the_report_can_hide_the_pictures(
    command: Command, leaky: Path, tmp_path: Path
) -> None:
    out = tmp_path / "hidden"
    assert command("report", leaky, "--out", out, "--redact", "originals").code == 0
    assert result_of(out)["redaction"] == "originals"
    name = result_of(leaky)["samples"][0]["image"]
    assert (out / name).read_bytes() != (leaky / name).read_bytes()
    assert command("report", leaky, "--out", out, "--redact", "faces").code == 2


def test_the_schema_fits_the_result(command: Command, leaky: Path) -> None:
    done = command("schema")
    assert done.code == 0
    schema = json.loads(done.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(result_of(leaky), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**result_of(leaky), "word": "safe"}, schema)


def test_inspect_finds_dropout_without_a_module(command: Command) -> None:
    arguments = ("inspect", "--model", "model.py:Functional", "--images", "images")
    done = command(*arguments)
    assert done.code == 0, done.stderr
    assert "dropout" in done.stdout
    assert "0.25" in done.stdout
    found = json.loads(command(*arguments, "--json").stdout)
    (call,) = found["stochastic"]
    assert (call["p"], call["active"], call["in_eval"]) == (0.25, True, False)


def test_inspect_fails_without_a_line_on_standard_output(command: Command) -> None:
    done = command("inspect", "--model", "model.py:nothing", "--json")
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.endswith("exit 2\n")


def test_one_file_that_cannot_be_read_is_listed(command: Command) -> None:
    folder = command.folder / "mixed"
    _images(folder, 2)
    picture = (folder / "0.png").read_bytes()
    (folder / "cut.png").write_bytes(picture[: len(picture) // 2])
    (folder / "page.jpg").write_text("<html>")
    arguments = ("audit", "--model", "model.py:mlp", "--images", folder)
    for size in ((), ("--size", "32")):
        done = command(*arguments, "--batch-size", "1", *size, "--out", "mixed-out")
        assert done.verdict == ("leaks", 1), done.stderr
        record = result_of(command.folder / "mixed-out")
        listed = [s["name"] for s in record["skipped_inputs"]]
        assert listed == ["cut.png", "page.jpg"]
        assert "Not audited: page.jpg: " in done.stderr
        assert len(record["samples"]) == 2


def test_a_picture_with_a_damaged_header_is_listed(command: Command) -> None:
    folder = command.folder / "header"
    _images(folder, 1)
    (folder / "1.ppm").write_bytes(b"P6\n32")
    arguments = ("audit", "--model", "model.py:mlp", "--images", folder)
    done = command(*arguments, "--batch-size", "1", "--out", "header-out")
    assert done.verdict == ("leaks", 1), done.stderr


def test_only_files_that_cannot_be_read_is_nothing_audited(command: Command) -> None:
    (command.folder / "bad").mkdir()
    (command.folder / "bad" / "0.png").write_text("<html>")
    done = command("audit", "--model", "model.py:mlp", "--images", "bad", "--out", "x")
    assert done.verdict == ("not run", 4)
    assert "0.png" in done.line


def test_names_that_are_not_ascii(command: Command) -> None:
    folder = command.folder / "bilder ä"
    _images(folder, 1)
    (folder / "0.png").rename(folder / "検査 <é>.png")
    (command.folder / "kürzel.csv").write_text("検査 <é>.png,3\n", encoding="utf-8")
    done = command(
        "audit", "--model", "model.py:mlp", "--images", folder, "--batch-size", "1",
        "--labels", "kürzel.csv", "--out", "aus ü", PYTHONIOENCODING="ascii",
    )  # fmt: skip
    assert done.verdict == ("leaks", 1), done.stderr
    (sample,) = result_of(command.folder / "aus ü")["samples"]
    assert (sample["name"], sample["label"]) == ("検査 <é>.png", 3)
    page = (command.folder / "aus ü" / "report.html").read_text(encoding="utf-8")
    assert "検査 &lt;é&gt;.png" in page


def test_images_are_converted_only_on_purpose(command: Command) -> None:
    _images(command.folder / "alpha", 1, "RGBA")
    grey = ("audit", "--model", "model.py:grey", "--images", "alpha", *ONLY)
    done = command(*grey, "--out", "alpha-out")
    assert done.verdict == ("error", 2), done.stderr
    assert "--image-mode L" in done.line
    done = command(*grey, "--out", "alpha-out", "--image-mode", "L")
    assert done.code in (3, 4), done.stderr
    assert result_of(command.folder / "alpha-out")["inventory"]["input_shape"][0] == 1
    done = command(
        "audit", "--model", "model.py:mlp", "--images", "alpha", "--image-mode", "RGB",
        "--size", "32x32", "--out", "alpha-out",
    )  # fmt: skip
    assert done.verdict == ("leaks", 1), done.stderr


def test_images_are_resized_on_purpose(command: Command) -> None:
    folder = command.folder / "large"
    folder.mkdir()
    load(1, (48, 64))[0].save(folder / "0.png")
    done = command(
        "audit", "--model", "model.py:mlp", "--images", folder, "--size", "32",
        "--out", "large-out",
    )  # fmt: skip
    assert done.verdict == ("leaks", 1), done.stderr
    with Image.open(command.folder / "large-out/images/original-0000.png") as seen:
        assert seen.size == (32, 32)


def test_labels_reach_the_result(command: Command) -> None:
    (command.folder / "labels.csv").write_text("file,class\n1.png,2\n0.png,3\n")
    done = command(*MLP, "--labels", "labels.csv", "--out", "labelled")
    assert done.verdict == ("leaks", 1), done.stderr
    samples = result_of(command.folder / "labelled")["samples"]
    assert [(s["label"], s["label_source"]) for s in samples] == [
        (3, "given"), (2, "given"),
    ]  # fmt: skip
    (command.folder / "labels.csv").write_text("0.png,9\n1.png,0\n")
    done = command(*MLP, "--labels", "labels.csv", "--out", "labelled2")
    assert done.verdict == ("error", 2)
    assert "0 to 3" in done.line


def test_weights_of_a_data_parallel_model(command: Command) -> None:
    weights = {f"module.{k}": v for k, v in mlp().state_dict().items()}
    save_file(weights, command.folder / "wrapped.safetensors")
    done = command(*MLP, "--weights", "wrapped.safetensors", "--out", "wrapped")
    assert done.verdict == ("leaks", 1), done.stderr
    assert "prefix 'module.' taken off" in done.stderr


def test_weights_that_cannot_be_used(command: Command) -> None:
    state = mlp().state_dict()
    state["1.weight"][0, 0] = torch.nan
    save_file(state, command.folder / "nan.safetensors")
    (command.folder / "page.safetensors").write_text("<!DOCTYPE html><title>404")
    for name, text in (("nan", "1.weight"), ("page", "an HTML page of 25 bytes")):
        done = command(*MLP, "--weights", f"{name}.safetensors", "--out", "x")
        assert done.verdict == ("error", 2)
        assert text in done.line


def test_a_closed_pipe_is_no_leak(command: Command, leaky: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "privaudit", "gate", str(leaky), "--max-ssim", "1"],
        stdout=writer, stderr=subprocess.DEVNULL, check=False,
        env=environment(PYTHONUNBUFFERED="1"),
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == 3


@pytest.mark.parametrize("name", ["demo", "inspect", "audit", "report", "gate"])
def test_every_command_explains_itself(command: Command, name: str) -> None:
    done = command(name, "--help")
    assert (done.code, done.stderr) == (0, "")
    assert "Usage: " in done.stdout


def test_help_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    for arguments in ([], ["audit"], ["gate"], ["schema"]):
        done = privaudit(*arguments, "--help", cwd=tmp_path)
        assert (done.code, done.stderr) == (0, "")


def test_no_command_shows_the_help(command: Command) -> None:
    done = command()
    assert done.code == 2
    assert "Usage: " in done.stdout + done.stderr


def test_an_error_of_our_own_is_no_leak(command: Command) -> None:
    broken = command.folder / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import privaudit.verdict as v\n"
        "def judge(*a, **k): raise KeyError('oops')\n"
        "v.judge = judge\n"
    )
    place = command.folder / "leaky"
    path = f"{broken}{os.pathsep}{environment()['PYTHONPATH']}"
    done = privaudit("gate", place, cwd=command.folder, PYTHONPATH=path)
    assert done.verdict == ("inconclusive", 3)
    assert done.code == 3
    assert "Traceback" in done.stderr


def test_the_command_from_nothing(command: Command) -> None:
    done = privaudit(*MLP, "--out", "fresh", cwd=command.folder)
    assert (done.verdict, done.code) == (("leaks", 1), 1), done.stderr
    assert result_of(command.folder / "fresh")["verdict"]["line"] == done.line


def test_an_interrupted_audit_is_inconclusive(command: Command) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "privaudit", "audit", "--model", "model.py:Slow",
         "--images", "images", "--out", "slow"],
        cwd=command.folder, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    while not (command.folder / "started").exists():
        assert running.poll() is None, running.communicate()
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate()
    assert running.returncode == 3
    assert stdout == "privaudit: inconclusive | interrupted | exit 3\n"
    assert "Traceback" not in stderr
    assert not (command.folder / "slow").exists()


def test_what_the_model_prints_stays_off_standard_output(command: Command) -> None:
    (command.folder / "chatty.py").write_text(
        "from model import mlp\n\ndef chatty():\n    print('built')\n    return mlp()\n"
    )
    told = command(
        "audit", "--model", "chatty.py:chatty", "--images", "images",
        "--batch-size", "1", "--out", "chatty",
    )  # fmt: skip
    assert told.verdict == ("leaks", 1)
    assert len(told.stdout.splitlines()) == 1
    assert "built" in told.stderr
