"""What libllama says while it does one thing: the reason of a failure is nowhere else."""

from __future__ import annotations

import logging


class CollectedLog(logging.Handler):
    """Keeps what libllama logs inside its `with` block: errors, and lines that contain one of `words`.

    For starts only, where nothing else calls libllama: the logger is the process's.
    """

    def __init__(self, words: tuple[str, ...] = ()) -> None:
        super().__init__(logging.DEBUG)
        self._words = words
        self._logger = logging.getLogger("ultrafast.libllama")
        self.errors: list[str] = []
        self.matched: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if record.levelno >= logging.ERROR:
            self.errors.append(line)
        if any(word in line for word in self._words):
            self.matched.append(line)

    def text(self) -> str:
        return "; ".join(self.errors[-3:]) or "no reason given"

    def __enter__(self) -> CollectedLog:
        self._level = self._logger.level
        self._logger.addHandler(self)
        self._logger.setLevel(logging.DEBUG)
        self._logger.propagate = False  # thousands of lines; what matters goes into the error that is raised
        return self

    def __exit__(self, *_exc: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)
        self._logger.propagate = True
