"""docs/configuration.md lists every setting exactly as the code has it."""

import importlib.util
import os

import pytest
from tests.docs.documents import ROOT, read_snippets

from ultrafast.config.keys import NON_SETTING_ENV, SETTING_KEYS
from ultrafast.config.load import load_settings
from ultrafast.config.reference import markdown_table, sections

DOCUMENT = ROOT / "docs" / "configuration.md"
TOML_SNIPPETS = [snippet for snippet in read_snippets() if snippet.language == "toml" and not snippet.is_slo_file]


@pytest.mark.parametrize("section", sections())
def test_the_table_of_the_section_is_current(section):
    block = f"<!-- settings:{section} -->\n{markdown_table(section)}<!-- /settings -->"
    assert block in DOCUMENT.read_text(encoding="utf-8"), "run: .venv/bin/python tools/settings_reference.py"


def test_every_setting_has_a_sentence():
    assert [dotted for dotted, key in SETTING_KEYS.items() if not (key.field.description or "").endswith(".")] == []


def test_other_variables_are_documented():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [name for name in NON_SETTING_ENV if f"`{name}`" not in text] == []


@pytest.mark.parametrize("snippet", TOML_SNIPPETS, ids=str)
def test_example_files_are_valid(snippet, tmp_path):
    file = tmp_path / "example.toml"
    file.write_text(snippet.code, encoding="utf-8")
    load_settings({}, file)


def test_the_writer_of_the_tables_agrees():
    spec = importlib.util.spec_from_file_location("settings_reference", ROOT / "tools" / "settings_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = DOCUMENT.read_text(encoding="utf-8")
    assert module.render(text) == text
    assert os.fspath(module.DOCUMENT.resolve()) == os.fspath(DOCUMENT)
