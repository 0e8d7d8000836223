"""Reads the header of a GGUF file without trusting a single number in it.

Owns the byte layout (magic, counts, metadata, tensor table). Does not know what the keys mean: that is `gguf`.
Every length is checked against the bytes that are left in the file before anything is read or allocated, and the
whole header against `MAX_HEADER_BYTES`, so that a hostile or damaged file costs an error and nothing else.

Layout (version 2 and 3, little-endian)::

    "GGUF" | u32 version | u64 num_tensors | u64 num_metadata
    num_metadata x (string key | u32 type | value)
    num_tensors  x (string name | u32 num_dims | num_dims x u64 | u32 type | u64 offset)
    padding to `alignment` | tensor data, offsets relative to here
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from ultrafast.core.errors import ModelFileError
from ultrafast.models.gguf_types import SCALAR_FORMATS, TENSOR_LAYOUTS, ValueType

MAX_HEADER_BYTES: Final = 512 * 1024 * 1024
MAX_KEPT_ITEMS: Final = 1024
_MAX_NESTING: Final = 4
_MAX_DIMS: Final = 4
_MIN_METADATA_BYTES: Final = 8 + 4 + 1
_MIN_TENSOR_BYTES: Final = 8 + 4 + 8 + 4 + 8
_READ_BYTES: Final = 1024 * 1024

HINT_DAMAGED: Final = "The file is cut or damaged: download it again and compare its SHA-256 with the publisher's."


@dataclass(frozen=True, slots=True)
class LongArray:
    """An array too long to keep (a vocabulary, say): only its item type and length are known."""

    item_type: ValueType
    length: int


Scalar = int | float | bool | str
Value = Scalar | tuple["Value", ...] | LongArray


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One row of the tensor table; ``offset`` is in bytes from the start of the tensor data."""

    name: str
    dims: tuple[int, ...]
    type_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What the header says. ``sha256`` covers exactly the ``num_bytes`` of the header."""

    version: int
    metadata: dict[str, Value]
    tensors: tuple[TensorInfo, ...]
    num_bytes: int
    sha256: str


class _Cursor:
    """A forward-only reader that refuses to pass the end of the file or the header limit."""

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file = file
        self._size_bytes = size_bytes
        self._buffer = b""
        self._buffer_position = 0
        self.position = 0

    def require(self, num_bytes: int, what: str) -> None:
        """Raises ModelFileError unless ``num_bytes`` more are there and within the limit."""
        end = self.position + num_bytes
        if end > self._size_bytes:
            left = self._size_bytes - self.position
            raise ModelFileError(
                f"the header ends too early: {what} at byte {self.position} needs {num_bytes} bytes, {left} are left.",
                hint=HINT_DAMAGED,
            )
        if end > MAX_HEADER_BYTES:
            raise ModelFileError(
                f"the header is larger than {MAX_HEADER_BYTES} bytes at {what}; no real model needs that.",
                hint=HINT_DAMAGED,
            )

    def take(self, num_bytes: int, what: str) -> bytes:
        """The next ``num_bytes``, checked first."""
        self.require(num_bytes, what)
        start = self._buffer_position
        if start + num_bytes > len(self._buffer):
            self._refill(num_bytes, what)
            start = 0
        self._buffer_position = start + num_bytes
        self.position += num_bytes
        return self._buffer[start : start + num_bytes]

    def _refill(self, num_bytes: int, what: str) -> None:
        rest = self._buffer[self._buffer_position :]
        self._buffer = rest + self._file.read(max(num_bytes - len(rest), _READ_BYTES))
        self._buffer_position = 0
        if len(self._buffer) < num_bytes:
            raise ModelFileError(f"the file shrank while {what} was read.", hint=HINT_DAMAGED)

    def u32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little")

    def string_bytes(self, what: str) -> bytes:
        return self.take(self.u64(what), what)

    def string(self, what: str) -> str:
        """A length-prefixed string; bytes that are not UTF-8 are kept visible, as vocabularies contain them."""
        return self.string_bytes(what).decode("utf-8", errors="backslashreplace")


def read_header(path: Path, size_bytes: int) -> GgufHeader:
    """Reads metadata and tensor table; the tensor data is not touched.

    Raises:
        ModelFileError: the file is no GGUF file of version 2 or 3, or its header is damaged.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        cursor = _Cursor(file, size_bytes)
        version = _read_version(cursor)
        num_tensors = cursor.u64("the number of tensors")
        num_metadata = cursor.u64("the number of metadata entries")
        cursor.require(num_metadata * _MIN_METADATA_BYTES + num_tensors * _MIN_TENSOR_BYTES, "the declared entries")
        metadata: dict[str, Value] = {}
        for _ in range(num_metadata):
            key = cursor.string("a metadata key")
            metadata[key] = _read_value(cursor, cursor.u32(f"the type of {key!r}"), f"the value of {key!r}", 0)
        tensors = tuple(_read_tensor(cursor) for _ in range(num_tensors))
    return GgufHeader(version, metadata, tensors, cursor.position, _sha256_of_start(path, cursor.position))


def _sha256_of_start(path: Path, num_bytes: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        left = num_bytes
        while left > 0 and (chunk := file.read(min(left, _READ_BYTES))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()


def _read_version(cursor: _Cursor) -> int:
    magic = cursor.take(4, "the magic number")
    if magic != b"GGUF":
        raise ModelFileError(f"this is not a GGUF file: {_describe_magic(magic)}.", hint=_hint_for_magic(magic))
    version = cursor.u32("the version")
    if version in (2, 3):
        return version
    if version == 1:
        raise ModelFileError(
            "GGUF version 1 is not supported.", hint="Convert the model again, or take a newer file of the same model."
        )
    if version & 0xFFFF == 0:
        raise ModelFileError("this is a big-endian GGUF file.", hint="Take the little-endian file of the same model.")
    raise ModelFileError(
        f"GGUF version {version} is unknown; versions 2 and 3 are supported.",
        hint="The file is damaged, or newer than this release of Ultrafast.",
    )


_KNOWN_MAGICS: Final[dict[bytes, tuple[str, str]]] = {
    b"vers": ("it looks like a Git LFS pointer", "Fetch the real file (`git lfs pull`), not its pointer."),
    b"<!DO": ("it is a web page", "Use the direct download link of the file, not the page about it."),
    b"<htm": ("it is a web page", "Use the direct download link of the file, not the page about it."),
    b"PK\x03\x04": ("it is a zip archive or a PyTorch checkpoint", "Convert the model to GGUF first."),
    b"lmgg": ("it is in the older GGML format", "Take a GGUF file of the same model."),
    b"fmgg": ("it is in the older GGML format", "Take a GGUF file of the same model."),
    b"tjgg": ("it is in the older GGML format", "Take a GGUF file of the same model."),
}


def _describe_magic(magic: bytes) -> str:
    known = _KNOWN_MAGICS.get(magic)
    return known[0] if known else f"it starts with {magic!r} instead of b'GGUF'"


def _hint_for_magic(magic: bytes) -> str:
    known = _KNOWN_MAGICS.get(magic)
    return known[1] if known else "Give the path of a .gguf file; other formats (safetensors, ONNX) must be converted first."


def _read_type(type_id: int, what: str) -> ValueType:
    try:
        return ValueType(type_id)
    except ValueError:
        raise ModelFileError(f"the header is damaged: {what} has unknown type {type_id}.", hint=HINT_DAMAGED) from None


def _read_value(cursor: _Cursor, type_id: int, what: str, depth: int) -> Value:
    value_type = _read_type(type_id, what)
    if value_type is ValueType.STRING:
        return cursor.string(what)
    if value_type is ValueType.ARRAY:
        return _read_array(cursor, what, depth + 1)
    return _read_scalar(cursor, value_type, what)


def _read_scalar(cursor: _Cursor, value_type: ValueType, what: str) -> int | float | bool:
    layout = SCALAR_FORMATS[value_type]
    (value,) = struct.unpack(layout, cursor.take(struct.calcsize(layout), what))
    assert isinstance(value, int | float)
    return value


def _read_array(cursor: _Cursor, what: str, depth: int) -> Value:
    if depth > _MAX_NESTING:
        raise ModelFileError(f"the header is damaged: {what} nests arrays too deeply.", hint=HINT_DAMAGED)
    item_type = _read_type(cursor.u32(what), what)
    length = cursor.u64(what)
    cursor.require(length * _min_item_bytes(item_type), what)
    if length <= MAX_KEPT_ITEMS:
        return tuple(_read_value(cursor, item_type, what, depth) for _ in range(length))
    _skip_items(cursor, item_type, length, what, depth)
    return LongArray(item_type, length)


def _min_item_bytes(item_type: ValueType) -> int:
    if item_type is ValueType.STRING:
        return 8
    if item_type is ValueType.ARRAY:
        return 12
    return struct.calcsize(SCALAR_FORMATS[item_type])


def _skip_items(cursor: _Cursor, item_type: ValueType, length: int, what: str, depth: int) -> None:
    if item_type is ValueType.STRING:
        for _ in range(length):
            cursor.string_bytes(what)
    elif item_type is ValueType.ARRAY:
        for _ in range(length):
            _read_array(cursor, what, depth + 1)
    else:
        cursor.take(length * _min_item_bytes(item_type), what)


def _read_tensor(cursor: _Cursor) -> TensorInfo:
    name = cursor.string("a tensor name")
    what = f"tensor {name!r}"
    num_dims = cursor.u32(what)
    if not 1 <= num_dims <= _MAX_DIMS:
        raise ModelFileError(f"the header is damaged: {what} has {num_dims} dimensions.", hint=HINT_DAMAGED)
    dims = tuple(cursor.u64(what) for _ in range(num_dims))
    return TensorInfo(name, dims, cursor.u32(what), cursor.u64(what))


def tensor_bytes(tensor: TensorInfo) -> int:
    """Bytes that a tensor's data takes, from its shape and type.

    Raises:
        ModelFileError: the type is removed or unknown, or the shape does not fit the type's blocks.
    """
    layout = TENSOR_LAYOUTS.get(tensor.type_id)
    if layout is None:
        raise ModelFileError(
            f"Tensor {tensor.name!r} has type {tensor.type_id}, which this release cannot read.",
            hint="Take a file with another quantisation of the same model, for example Q4_K_M or Q8_0.",
        )
    num_elements = 1
    for dim in tensor.dims:
        num_elements *= dim
    if num_elements == 0 or tensor.dims[0] % layout.num_elements:
        raise ModelFileError(f"Tensor {tensor.name!r} has shape {tensor.dims}, which its type cannot have.", hint=HINT_DAMAGED)
    return num_elements // layout.num_elements * layout.num_bytes
