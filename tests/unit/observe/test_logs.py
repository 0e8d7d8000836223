"""What a failure may say in the log: where it was, never what a client wrote."""

from __future__ import annotations

import io
import json
import logging
import warnings

import pytest

from ultrafast.observe.logs import describe_failure, set_up_logging

SECRET = "what the client wrote"


def test_a_failure_is_described_by_classes_and_places_alone() -> None:
    def inner() -> None:
        raise KeyError(SECRET)

    def outer() -> None:
        try:
            inner()
        except KeyError as error:
            raise ValueError(SECRET) from error

    with pytest.raises(ValueError, match=SECRET) as caught:
        outer()
    text = describe_failure(caught.value)
    first, second = text.split(" < ")
    assert first.startswith("ValueError at test_logs.py:")
    assert second.startswith("KeyError at test_logs.py:")
    assert second.endswith(" inner")
    assert SECRET not in text


def test_a_hidden_cause_stays_hidden_and_one_that_was_never_raised_has_no_place() -> None:
    def hiding() -> None:
        try:
            raise KeyError
        except KeyError:
            raise ValueError from None

    with pytest.raises(ValueError) as caught:  # noqa: PT011 - it has no text
        hiding()
    assert "KeyError" not in describe_failure(caught.value)
    assert describe_failure(OSError()) == "OSError at an unknown place"


def test_a_warning_of_a_library_has_the_form_of_the_log() -> None:
    log = io.StringIO()
    logging.captureWarnings(False)  # whoever set up logging before left it on
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        set_up_logging("info", "json", log)
        try:
            warnings.warn("divide by zero", RuntimeWarning, stacklevel=1)
        finally:
            logging.captureWarnings(False)
            set_up_logging()
            logging.captureWarnings(False)
    entry = json.loads(log.getvalue())
    assert (entry["level"], entry["logger"]) == ("warning", "py.warnings")
    assert "divide by zero" in entry["message"]
