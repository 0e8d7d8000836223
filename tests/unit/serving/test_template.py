from __future__ import annotations

import pytest

from ultrafast.core.clock import ManualClock
from ultrafast.core.errors import InvalidRequestError, ModelFileError
from ultrafast.serving import template as module
from ultrafast.serving.template import ChatTemplate

MESSAGES = [{"role": "user", "content": "Hi"}]


def test_blocks_are_trimmed_as_in_transformers() -> None:
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n"
    assert ChatTemplate(source).render(MESSAGES) == "Hi\n"


def test_tojson_escapes_nothing_for_html_or_ascii() -> None:
    template = ChatTemplate("{{ messages[0].content | tojson }}|{{ tools | tojson(indent=2) }}")
    text = template.render([{"role": "user", "content": "<é> '\"&"}], tools=[{"a": 1}])
    assert text == '"<é> \'\\"&"|[\n  {\n    "a": 1\n  }\n]'


def test_known_functions_and_extensions() -> None:
    source = (
        "{{ bos_token }}{{ strftime_now('%Y') | length }}"
        "{% for m in [1, 2, 3] %}{% if m == 2 %}{% continue %}{% endif %}{{ m }}{% endfor %}"
        "{% generation %}{{ messages[0].content }}{% endgeneration %}{{ tools is none }}{{ eos_token }}"
    )
    assert ChatTemplate(source, bos_text="<s>", eos_text="</s>").render(MESSAGES) == "<s>413HiTrue</s>"


def test_template_can_refuse() -> None:
    with pytest.raises(InvalidRequestError, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render(MESSAGES)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + none }}",
        "{{ messages.nothing.more }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for a in range(1000000000) %}x{% endfor %}",
        "{{ 1 / 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_failures_are_bad_requests(source: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate(source).render(MESSAGES)
    assert caught.value.param == "messages"


def test_bad_source_is_a_bad_model_file() -> None:
    with pytest.raises(ModelFileError, match="line 2"):
        ChatTemplate("\n{% for %}")


def test_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PROMPT_CHARS", 1000)
    with pytest.raises(InvalidRequestError, match="longer than 1000"):
        ChatTemplate("{% for a in range(90000) %}{{ messages[0].content }}{% endfor %}").render(MESSAGES)


def test_time_is_bounded() -> None:
    now = ManualClock()

    def clock() -> float:
        now.advance(1.0)
        return now()

    with pytest.raises(InvalidRequestError, match="longer than 5 s"):
        ChatTemplate("{% for a in range(90000) %}{{ a }}{% endfor %}", clock=clock).render(MESSAGES)
