"""Load libllama and prove that our declarations fit it before anything depends on them.

Structs travel by value, so a library whose layout differs would corrupt memory instead of failing. The check therefore calls the
two `*_default_params` functions through a prototype whose result is larger than any layout they can have, reads the bytes through
our declarations, and compares every default that identifies a field. Only then is the library used.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
from functools import cache
from pathlib import Path
from typing import Any

from cffi import FFI

from ultrafast.core.errors import ConfigError
from ultrafast.engine.llama.cdef import CDEF

PINNED_WHEEL = "xllamacpp"
PINNED_VERSION = "2026.10.11549"
PINNED_BUILD = "b11549"
OVERRIDE_VARIABLE = "ULTRAFAST_LIBLLAMA"

# Wider than both structs in any build seen so far (160 and 80 bytes at b11549).
_PROBE_CDEF = "typedef struct { uint64_t raw[64]; } ultrafast_abi_probe;"

# Defaults that no other field order would show by chance; read at b11549.
_CONTEXT_DEFAULTS = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "flash_attn_type": -1,
    "yarn_ext_factor": -1.0,
    "defrag_thold": -1.0,
    "type_k": 1,
    "type_v": 1,
    "moe_cache_size": 0,
    "embeddings": False,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
    "kv_unified": False,
    "n_samplers": 0,
}
_MODEL_DEFAULTS = {
    "n_gpu_layers": -1,
    "split_mode": 1,
    "load_mode": -1,
    "main_gpu": 0,
    "vocab_only": False,
    "check_tensors": False,
    "use_extra_bufts": True,
}

ffi = FFI()
ffi.cdef(CDEF)
ffi.cdef(_PROBE_CDEF)

_log = logging.getLogger("ultrafast.libllama")
_LOG_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}


class Library:
    """A checked libllama. `c` holds its functions; `build` names it for facts, cache keys and bug reports.

    `is_error_expected`: what it logs as an error is not one at the moment (a pass is being broken off).
    """

    def __init__(self, c: Any, build: str, path: Path) -> None:
        self.c = c
        self.build = build
        self.path = path
        self.is_error_expected = False
        self._level = 2
        self._log_callback = ffi.callback("ggml_log_callback", self._on_log)  # must outlive the library
        c.llama_log_set(self._log_callback, ffi.NULL)
        c.llama_backend_init()

    def _on_log(self, level: int, text: Any, _user_data: Any) -> None:
        # 5 means "continues the line before": it keeps that line's level.
        self._level = level if level != 5 else self._level
        level = logging.DEBUG if self.is_error_expected else _LOG_LEVELS.get(self._level, logging.DEBUG)
        if _log.isEnabledFor(level):
            line = ffi.string(text).decode("utf-8", "replace").rstrip()
            if line and line != ".":
                _log.log(level, "%s", line)


@cache
def load(libllama_path: str | None = None) -> Library:
    """Open and check the library.

    Args:
        libllama_path: another library instead of the one in the pinned wheel; the environment variable
            ULTRAFAST_LIBLLAMA does the same where this is None.

    Raises:
        ConfigError: the library is missing, cannot be opened, or does not match our declarations.
    """
    override = libllama_path or os.environ.get(OVERRIDE_VARIABLE)
    path = Path(override) if override else _wheel_library()
    try:
        c = ffi.dlopen(str(path))
    except OSError as error:
        raise ConfigError(
            f"cannot open libllama at {path}: {error}",
            code="libllama_missing",
            hint=_open_hint(str(error), bool(override)),
        ) from error
    check_abi(c, path)
    return Library(c, _build_name(c, override), path)


def check_abi(c: Any, path: Path) -> None:
    """Compare struct defaults with those of the pinned build.

    Raises:
        ConfigError: naming the first field that differs.
    """
    for function, struct, defaults in (
        ("llama_context_default_params", "llama_context_params", _CONTEXT_DEFAULTS),
        ("llama_model_default_params", "llama_model_params", _MODEL_DEFAULTS),
    ):
        try:
            pointer = ffi.addressof(c, function)
        except AttributeError as error:
            raise _abi_error(path, f"it has no {function}") from error
        probe = ffi.new("ultrafast_abi_probe *", ffi.cast("ultrafast_abi_probe (*)(void)", pointer)())
        seen = ffi.cast(f"{struct} *", probe)
        for name, expected in defaults.items():
            value = getattr(seen, name)
            if value != expected:
                raise _abi_error(path, f"{struct}.{name} defaults to {value!r}, expected {expected!r}")


def _open_hint(reason: str, is_override: bool) -> str:
    if "libgomp" in reason:
        return "install the OpenMP runtime (Debian, Ubuntu: apt install libgomp1)"
    if is_override:
        return f"unset engine.libllama_path and {OVERRIDE_VARIABLE} to use the library that ships with {PINNED_WHEEL}"
    return f"reinstall it: pip install --force-reinstall {PINNED_WHEEL}=={PINNED_VERSION}"


def _abi_error(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"libllama at {path} does not match the C API of {PINNED_BUILD}: {reason}",
        code="libllama_abi",
        hint=f"use build {PINNED_BUILD} (pip install {PINNED_WHEEL}=={PINNED_VERSION}), or unset {OVERRIDE_VARIABLE}",
    )


def _wheel_library() -> Path:
    spec = importlib.util.find_spec(PINNED_WHEEL)
    version = importlib.metadata.version(PINNED_WHEEL) if spec else None
    if spec is None or not spec.submodule_search_locations or version != PINNED_VERSION:
        raise ConfigError(
            f"{PINNED_WHEEL} {PINNED_VERSION} is needed, found {version or 'none'}",
            code="libllama_missing",
            hint=f"pip install {PINNED_WHEEL}=={PINNED_VERSION}, or point {OVERRIDE_VARIABLE} to a libllama {PINNED_BUILD}",
        )
    folder = Path(spec.submodule_search_locations[0])
    candidates = sorted(folder.glob(f"{PINNED_WHEEL}*.so"))
    if not candidates:
        raise ConfigError(f"{folder} holds no shared library", code="libllama_missing", hint=f"reinstall {PINNED_WHEEL}")
    return candidates[0]


def _build_name(c: Any, override: str | None) -> str:
    if override is None:
        return PINNED_BUILD
    return f"custom {ffi.string(c.llama_version()).decode()}"
