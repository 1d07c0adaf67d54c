"""Redaction: a known secret is removed from every text, in whatever form."""

import base64
import json
from pathlib import Path
from shutil import which
from subprocess import run
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.config.load import load
from outrider.config.redact import OUTRIDER_KEY, Redactor, build_redactor
from outrider.store.keys import KEY_PATTERN

SECRET = "sk-Do/Not+Tell=0123"
LONG = "sk-proj-" + "aB3_d-F7" * 20


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (SECRET, "%secret%"),
        (f"key={SECRET}\nand {SECRET}{SECRET}", "key=%secret%\nand %secret%%secret%"),
        (f"?key={quote(SECRET, safe='')}&x=1", "?key=%secret%&x=1"),
        (f"/{quote(SECRET)}/", "/%secret%/"),
        (f"?key={quote_plus(SECRET)}", "?key=%secret%"),
        (f"?key={SECRET.replace('/', '%2f').replace('+', '%2b').replace('=', '%3d')}", "?key=%secret%"),
        (base64.b64encode(SECRET.encode()).decode(), "%secret%"),
        (base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("="), "%secret%"),
        ("nothing here", "nothing here"),
        ("", ""),
    ],
)
def test_a_secret_is_replaced_in_every_form(text: str, clean: str) -> None:
    assert Redactor([SECRET]).redact(text) == clean


def test_a_secret_escaped_in_json_is_replaced() -> None:
    secret = 'with "quotes" and \\ and\nlines'
    assert Redactor([secret]).redact(json.dumps({"key": secret})) == '{"key": "%secret%"}'


@given(before=st.binary(max_size=80), behind=st.binary(max_size=80), secret=st.sampled_from([SECRET, LONG, "12345678"]))
def test_no_part_of_a_secret_can_be_decoded_from_base64_of_a_longer_text(
    before: bytes, behind: bytes, secret: str
) -> None:
    whole = before + secret.encode() + behind
    for encode in (base64.b64encode, base64.urlsafe_b64encode, base64.encodebytes):
        text = encode(whole).decode()
        clean = Redactor([secret]).redact(text)
        head, mark, tail = clean.partition("%secret%")
        letters = len("".join((head + tail).split()).rstrip("="))
        most = len(base64.b64encode(before)) + len(base64.b64encode(behind)) + 2
        assert (mark, letters <= most, text.startswith(head)) == ("%secret%", True, True)


def test_of_two_overlapping_secrets_the_longer_one_is_replaced_as_a_whole() -> None:
    assert Redactor([SECRET, f"{SECRET}-more"]).redact(f"{SECRET}-more {SECRET}") == "%secret% %secret%"


def test_values_that_are_too_short_are_not_replaced() -> None:
    short = Redactor(["", "x", "1234567"])
    assert (bool(short), short.redact("x 1234567")) == (False, "x 1234567")


def test_a_text_without_a_secret_is_returned_unchanged() -> None:
    text = "a line of text\n" * 10_000
    assert Redactor([SECRET, LONG]).redact(text) is text


@given(values=st.lists(st.text()), text=st.text())
def test_any_value_and_any_text_are_accepted(values: list[str], text: str) -> None:
    clean = Redactor([*values, "\udcff" * 9]).redact(text)
    assert clean == text or "%secret%" in clean


def test_the_repr_does_not_reveal_secrets() -> None:
    assert (repr(Redactor([SECRET])), repr(Redactor([]))) == ("Redactor(…)", "Redactor()")


def test_the_secrets_of_a_configuration_are_those_set_referred_to_and_in_the_environment(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("from-a-file\n")
    key.chmod(0o600)
    environ = {
        "OUTRIDER_MODEL_KEY": f"file:{key}",
        "OPENAI_API_KEY": "openai-key-1",
        "GROQ_API_KEY": "groq-key-2",
        "OUTRIDER_API_KEY": "server-key-3",
        "OUTRIDER_REMOTE_KEY": "remote-key-4",
        "USER": "someone-long",
    }
    text = "from-a-file openai-key-1 groq-key-2 server-key-3 remote-key-4 someone-long"
    clean = build_redactor(load(tmp_path, environ)).redact(text)
    assert clean == "%secret% %secret% %secret% %secret% %secret% someone-long"
    assert not build_redactor(load(tmp_path, {}))


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"ork_abcdefg2_{'0f' * 32}\n", "%secret%\n"),
        (f"Bearer ork_abcdefg2_{'0f' * 32}, please", "Bearer %secret%, please"),
        ("ork_abcdefg2_ is the id of a key", "ork_abcdefg2_ is the id of a key"),
    ],
)
def test_an_api_key_issued_by_outrider_is_replaced(text: str, clean: str) -> None:
    assert Redactor([]).redact(text) == clean


def test_issued_keys_have_the_form_that_is_redacted() -> None:
    assert KEY_PATTERN.pattern.replace("(", "").replace(")", "") == OUTRIDER_KEY.pattern


def test_no_shell_takes_what_stands_for_a_secret_for_a_pattern(tmp_path: Path) -> None:
    for letter in "secrt*-%":
        (tmp_path / letter).touch()
    redactor = Redactor([SECRET])
    marks = redactor.redact(SECRET), redactor.mask(SECRET.encode()).decode()
    for shell in filter(None, map(which, ("sh", "bash", "zsh"))):
        ran = run([shell, "-c", f"echo {' '.join(marks)}"], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert (ran.stdout, ran.stderr) == (f"{' '.join(marks)}\n", "")
