"""Numbers of the GGUF format: value types, tensor types and the names of file types.

Source: ``gguf.md`` of the ggml project (versions 2 and 3) and the enums ``ggml_type`` and ``llama_ftype`` of
llama.cpp b11549. Sizes were compared with ``ggml_blck_size`` and ``ggml_type_size`` of that build.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple


class ValueType(enum.IntEnum):
    """Type tag of a metadata value."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


SCALAR_FORMATS: Final[dict[ValueType, str]] = {
    ValueType.UINT8: "<B",
    ValueType.INT8: "<b",
    ValueType.UINT16: "<H",
    ValueType.INT16: "<h",
    ValueType.UINT32: "<I",
    ValueType.INT32: "<i",
    ValueType.FLOAT32: "<f",
    ValueType.BOOL: "<?",
    ValueType.UINT64: "<Q",
    ValueType.INT64: "<q",
    ValueType.FLOAT64: "<d",
}
"""Little-endian ``struct`` formats; strings and arrays have none."""


class BlockLayout(NamedTuple):
    """A tensor type stores ``num_elements`` values in ``num_bytes`` bytes."""

    num_elements: int
    num_bytes: int


TENSOR_LAYOUTS: Final[dict[int, BlockLayout]] = {
    0: BlockLayout(1, 4),  # F32
    1: BlockLayout(1, 2),  # F16
    2: BlockLayout(32, 18),  # Q4_0
    3: BlockLayout(32, 20),  # Q4_1
    6: BlockLayout(32, 22),  # Q5_0
    7: BlockLayout(32, 24),  # Q5_1
    8: BlockLayout(32, 34),  # Q8_0
    9: BlockLayout(32, 36),  # Q8_1
    10: BlockLayout(256, 84),  # Q2_K
    11: BlockLayout(256, 110),  # Q3_K
    12: BlockLayout(256, 144),  # Q4_K
    13: BlockLayout(256, 176),  # Q5_K
    14: BlockLayout(256, 210),  # Q6_K
    15: BlockLayout(256, 292),  # Q8_K
    16: BlockLayout(256, 66),  # IQ2_XXS
    17: BlockLayout(256, 74),  # IQ2_XS
    18: BlockLayout(256, 98),  # IQ3_XXS
    19: BlockLayout(256, 50),  # IQ1_S
    20: BlockLayout(32, 18),  # IQ4_NL
    21: BlockLayout(256, 110),  # IQ3_S
    22: BlockLayout(256, 82),  # IQ2_S
    23: BlockLayout(256, 136),  # IQ4_XS
    24: BlockLayout(1, 1),  # I8
    25: BlockLayout(1, 2),  # I16
    26: BlockLayout(1, 4),  # I32
    27: BlockLayout(1, 8),  # I64
    28: BlockLayout(1, 8),  # F64
    29: BlockLayout(256, 56),  # IQ1_M
    30: BlockLayout(1, 2),  # BF16
    34: BlockLayout(256, 54),  # TQ1_0
    35: BlockLayout(256, 66),  # TQ2_0
    39: BlockLayout(32, 17),  # MXFP4
    40: BlockLayout(64, 36),  # NVFP4
    41: BlockLayout(128, 18),  # Q1_0
    42: BlockLayout(64, 18),  # Q2_0
}
"""Known tensor types by number; the removed ones (4, 5, 31-33, 36-38) are absent on purpose."""

FILE_TYPE_NAMES: Final[dict[int, str]] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
    40: "Q1_0",
    41: "Q2_0",
}
"""What people call a file's quantisation, by ``general.file_type``."""
