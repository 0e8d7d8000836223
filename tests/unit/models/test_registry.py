import pytest

from ultrafast.models.hub import HubModel, parse_hub_name
from ultrafast.models.registry import DEFAULT_MODEL, MODELS, find_model, known_names


def test_names_and_aliases_are_unique_and_found() -> None:
    names = known_names()
    assert len(set(names)) == len(names)
    assert all(find_model(name) is not None for name in names)
    assert find_model(DEFAULT_MODEL) is find_model("default") is find_model(" SmolLM2 ")
    assert find_model("nothing") is None


def test_pins_are_exact() -> None:
    for model in MODELS:
        assert "==" in model.package
        assert len(model.wheel_sha256) == len(model.file_sha256) == 64
        assert model.member.endswith(model.file_name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("o/r:f.gguf", HubModel("o", "r", "f.gguf")),
        ("o-1/r.2:dir/f-Q4_K_M.gguf", HubModel("o-1", "r.2", "dir/f-Q4_K_M.gguf")),
        ("o/r", None),
        ("o/r:f.bin", None),
        ("o/r:../../f.gguf", None),
        ("o/r:a/../../f.gguf", None),
        ("../r:f.gguf", None),
        ("o/..:f.gguf", None),
        ("o/r:/etc/f.gguf", None),
        ("o/r:f.gguf\n", None),
    ],
)
def test_hub_names(name: str, expected: HubModel | None) -> None:
    assert parse_hub_name(name) == expected
