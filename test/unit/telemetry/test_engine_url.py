"""Engine URLs: what is refused before a request is sent there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_dualpath.telemetry.engine_url import check_engine_url


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1:30000",
        "https://engine-1.example.org",
        "http://[::1]:30000",
        "http://localhost:1/",
        "http://h/e1",
    ],
)
def test_urls_of_engines(url: str) -> None:
    check_engine_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "10.0.0.1:30000",
        "grpc://10.0.0.1:30000",
        "file:///etc/passwd",
        "http://",
        "http://:30000",
        "http://10.0.0.1:0",
        "http://10.0.0.1:99999",
        "http://10.0.0.1:port",
        "http://a..b:30000",
        "http://" + "a" * 64 + ":30000",
        "http://[::1",
        "http://10.0.0.1:30000?x=1",
        "http://10.0.0.1:30000#x",
    ],
)
def test_what_is_none_is_refused_and_shown(url: str) -> None:
    with pytest.raises(ValueError, match="url ") as refusal:
        check_engine_url(url)
    assert repr(url) in str(refusal.value)


@given(st.text(max_size=30))
def test_any_text_is_a_url_or_a_value_error(text: str) -> None:
    refusal = ""
    try:
        check_engine_url("http://" + text)
    except ValueError as error:
        refusal = str(error)
    assert refusal == "" or refusal.startswith("url ")
