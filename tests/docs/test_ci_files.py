"""The ready-made CI jobs call commands and flags that exist; SLO files of the documents can be read."""

import re
import shlex

import pytest
from tests.docs.documents import ROOT, read_snippets

from ultrafast.bench.gate.slo_file import read_slo_file
from ultrafast.cli.gate import gate

FILES = sorted((ROOT / "docs" / "ci").glob("*.yml"))
CALL = re.compile(r"ultrafast gate (?P<arguments>[^|\n]*)")
VARIABLE = re.compile(r"^\s*(?P<name>GATE_\w+): \"(?P<value>.*)\"$", re.MULTILINE)


def test_both_systems_have_one():
    assert [file.name for file in FILES] == ["github-actions.yml", "gitlab-ci.yml"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_command_line_is_understood(file):
    text = file.read_text(encoding="utf-8")
    line = CALL.search(text)["arguments"]
    for variable in VARIABLE.finditer(text):
        line = line.replace(f"${variable['name']}", variable["value"])
    context = gate.make_context("gate", shlex.split(line))
    assert context.params["target_p99"] == "300"
    assert context.params["max_jitter"] == "20"
    assert context.params["junit"].name == "gate.xml"
    assert context.params["max_duration"] == 600


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_it_is_plain_yaml(file):
    """No tabs, no trailing blanks, indentation by twos: what a parser would trip over."""
    for line in file.read_text(encoding="utf-8").splitlines():
        assert "\t" not in line
        assert line == line.rstrip()
        assert (len(line) - len(line.lstrip(" "))) % 2 == 0


@pytest.mark.parametrize("snippet", [snippet for snippet in read_snippets() if snippet.is_slo_file], ids=str)
def test_slo_files_in_the_documents_are_read(snippet, tmp_path):
    file = tmp_path / "slo.toml"
    file.write_text(snippet.code, encoding="utf-8")
    assert read_slo_file(file)
