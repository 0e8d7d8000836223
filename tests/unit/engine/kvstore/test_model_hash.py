"""The name of a model file's content."""

from ultrafast.engine.kvstore.model_key import model_hash


def test_copies_have_one_name_and_a_changed_byte_another(tmp_path):
    first, copy, changed = (tmp_path / name for name in ("a.gguf", "b.gguf", "c.gguf"))
    content = bytes(range(256)) * 20_000
    first.write_bytes(content)
    copy.write_bytes(content)
    changed.write_bytes(content[:-1] + b"x")
    assert model_hash(first) == model_hash(copy)
    assert model_hash(first) != model_hash(changed)
    assert len(model_hash(first)) >= 32
