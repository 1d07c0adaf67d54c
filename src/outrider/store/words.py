"""Text as the search index reads it, and a person's words as a query that is always valid."""

import re

_EXCERPT_LENGTH = 160
_EXCERPT_LEAD = 50

# Scripts written without spaces between words: kana, Han and its extensions, Hangul, and their half-width forms.
_UNSPACED = re.compile(
    "([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff])"
)


def split_unspaced(text: str) -> str:
    """Each character of an unspaced script as a word of its own."""
    return _UNSPACED.sub(r" \1 ", text)


def match_expression(words: str) -> str:
    """All of these words, each as it stands or as a beginning; empty when there is nothing to look for.

    A word of an unspaced script becomes a phrase of its characters.
    """
    terms = (split_unspaced(term).replace('"', " ").replace("\0", " ").strip() for term in _valid_utf8(words).split())
    return " AND ".join(f'"{term}" *' for term in terms if any(map(str.isalnum, term)))


def excerpt(text: str, words: str) -> str:
    """A line of the text around the first of the words that is in it."""
    flat = " ".join(text.split())
    places = [flat.lower().find(word.strip('"').lower()) for word in words.split()]
    first = min((place for place in places if place >= 0), default=0)
    start = max(0, min(first - _EXCERPT_LEAD, len(flat) - _EXCERPT_LENGTH))
    return flat[start : start + _EXCERPT_LENGTH]


def _valid_utf8(words: str) -> str:
    return words.encode("utf-8", "replace").decode("utf-8")
