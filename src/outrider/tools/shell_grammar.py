"""Parser for shell command lines: lists, pipelines, groups, simple commands, words and redirections.

It reads the part of the POSIX shell language that a command line consists of. Loops, conditions, functions,
here-documents and everything else raise `NotUnderstood`, so that a caller that judges a command knows that it cannot.
Pure, and linear in the length of the text.
"""

import re
from typing import Literal

from msgspec import Struct

MAX_DEPTH = 20
"""Groups within groups. Deeper ones are not understood."""
ListOperator = Literal["", "&&", "||", ";", "&"]
_LIST_OPERATORS: dict[str, ListOperator] = {"&&": "&&", "||": "||", ";": ";", "\n": ";", "&": "&"}
_OPERATORS = re.compile(r"&&|\|\||;;|[0-9]*(?:<<|>>|<&|>&|<>|>\||<|>)|[;&|()\n]")
_BLANKS = " \t"
_KEYWORDS = frozenset(
    "if then else elif fi for while until do done case esac in function select coproc [[ ]] }".split()  # noqa: SIM905
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


class NotUnderstood(Exception):
    """The text is not a command line, or uses more of the shell language than is parsed here."""


class Word(Struct, frozen=True):
    text: str
    """The word without its quotes. Of an expansion, what is written in the command line."""
    is_literal: bool = True
    """Whether the shell uses `text` as it is: nothing in it is expanded."""
    runs_commands: bool = False
    """Whether it contains a command substitution."""


class Redirection(Struct, frozen=True):
    operator: str
    """Without the number of the file descriptor, e.g. `>`."""
    target: Word


class SimpleCommand(Struct, frozen=True):
    words: tuple[Word, ...] = ()
    assignments: tuple[Word, ...] = ()
    redirections: tuple[Redirection, ...] = ()


class Group(Struct, frozen=True):
    """Commands in parentheses or braces."""

    body: "CommandList"
    redirections: tuple[Redirection, ...] = ()


class Pipeline(Struct, frozen=True):
    commands: tuple[SimpleCommand | Group, ...]
    is_negated: bool = False


class ListItem(Struct, frozen=True):
    pipeline: Pipeline
    operator: ListOperator = ""
    """What follows it; empty at the end."""


class CommandList(Struct, frozen=True):
    items: tuple[ListItem, ...] = ()


def parse_command_line(text: str) -> CommandList:
    """Raises NotUnderstood."""
    parser = _Parser(_split_tokens(text))
    parsed = parser.command_list(depth=0)
    if parser.peek():
        raise NotUnderstood(f"unexpected {parser.peek()}")
    return parsed


class _Operator(Struct, frozen=True):
    text: str


_Token = _Operator | Word


def _split_tokens(text: str) -> list[_Token]:
    text = text.replace("\\\n", "")
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        if text[at] in _BLANKS:
            at += 1
        elif text[at] == "#":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif operator := _OPERATORS.match(text, at):
            tokens.append(_Operator(operator[0]))
            at = operator.end()
        else:
            word, at = _read_word(text, at)
            tokens.append(word)
    return tokens


def _read_word(text: str, at: int) -> tuple[Word, int]:
    parts: list[Word] = []
    while at < len(text) and text[at] not in " \t\n;&|()<>":
        match text[at]:
            case "\\":
                part, at = Word(text[at + 1 : at + 2]), at + 2
            case "'":
                end = text.find("'", at + 1)
                if end < 0:
                    raise NotUnderstood("an open quote")
                part, at = Word(text[at + 1 : end]), end + 1
            case '"':
                part, at = _read_double_quoted(text, at + 1)
            case "`" | "$":
                part, at = _read_expansion(text, at)
            case letter:
                is_literal = letter not in "*?[{" and not (letter == "~" and not parts)
                part, at = Word(letter, is_literal), at + 1
        parts.append(part)
    return _join(parts), at


def _read_double_quoted(text: str, at: int) -> tuple[Word, int]:
    parts: list[Word] = []
    while at < len(text):
        match text[at]:
            case '"':
                return _join(parts), at + 1
            case "\\":
                escaped = text[at + 1 : at + 2]
                part, at = Word(escaped if escaped in tuple('$`"\\') else text[at : at + 2]), at + 2
            case "`" | "$":
                part, at = _read_expansion(text, at)
            case letter:
                part, at = Word(letter), at + 1
        parts.append(part)
    raise NotUnderstood("an open quote")


def _join(parts: list[Word]) -> Word:
    return Word(
        "".join(part.text for part in parts),
        all(part.is_literal for part in parts),
        any(part.runs_commands for part in parts),
    )


def _read_expansion(text: str, at: int) -> tuple[Word, int]:
    if text[at] == "`":
        end = text.find("`", at + 1) + 1
        if not end:
            raise NotUnderstood("an open substitution")
    else:
        end = _end_of_expansion(text, at)
    return Word(text[at:end], is_literal=False, runs_commands=text.startswith(("`", "$("), at)), end


def _end_of_expansion(text: str, at: int) -> int:
    """Where the expansion that begins with `$` ends. One with parentheses or braces ends at the matching one."""
    opening = text[at + 1 : at + 2]
    if opening not in ("(", "{"):
        return at + 1
    closing, depth = {"(": ")", "{": "}"}[opening], 0
    for index in range(at + 1, len(text)):
        letter = text[index]
        if letter in "'\"\\`":
            # What is quoted in an expansion is not parsed.
            raise NotUnderstood("quotes in an expansion")
        depth += (letter == opening) - (letter == closing)
        if depth == 0:
            return index + 1
    raise NotUnderstood("an open expansion")


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def peek(self) -> str:
        """The operator that comes next; empty at the end, and `word` before a word."""
        match self._tokens[self._at] if self._at < len(self._tokens) else None:
            case _Operator(text=text):
                return text
            case Word():
                return "word"
            case None:
                return ""

    def command_list(self, depth: int) -> CommandList:
        if depth > MAX_DEPTH:
            raise NotUnderstood("too many groups within groups")
        items: list[ListItem] = []
        self._skip_newlines()
        while self.peek() not in ("", ")") and not self._next_is_word("}"):
            pipeline = self._pipeline(depth)
            operator = _LIST_OPERATORS.get(self.peek(), "")
            if operator:
                self._at += 1
                self._skip_newlines()
            items.append(ListItem(pipeline, operator))
            if not operator:
                break
        if items and items[-1].operator in ("&&", "||"):
            raise NotUnderstood("nothing after the last operator")
        return CommandList(tuple(items))

    def _pipeline(self, depth: int) -> Pipeline:
        is_negated = self._next_is_word("!")
        self._at += is_negated
        commands = [self._command(depth)]
        while self.peek() == "|":
            self._at += 1
            self._skip_newlines()
            commands.append(self._command(depth))
        return Pipeline(tuple(commands), is_negated)

    def _command(self, depth: int) -> SimpleCommand | Group:
        if self.peek() == "(" or self._next_is_word("{"):
            closing = ")" if self.peek() == "(" else "}"
            self._at += 1
            body = self.command_list(depth + 1)
            if not (self.peek() == closing or self._next_is_word(closing)):
                raise NotUnderstood("an open group")
            self._at += 1
            redirections: list[Redirection] = []
            while redirection := self._redirection():
                redirections.append(redirection)
            return Group(body, tuple(redirections))
        return self._simple_command()

    def _simple_command(self) -> SimpleCommand:
        words: list[Word] = []
        assignments: list[Word] = []
        redirections: list[Redirection] = []
        while True:
            if redirection := self._redirection():
                redirections.append(redirection)
                continue
            word = self._tokens[self._at] if self.peek() == "word" else None
            if not isinstance(word, Word):
                break
            self._at += 1
            if not words and _ASSIGNMENT.match(word.text):
                assignments.append(word)
            else:
                words.append(word)
        if self.peek() == "(" or not (words or assignments or redirections):
            raise NotUnderstood("a function, or no command")
        if words and words[0].is_literal and words[0].text in _KEYWORDS:
            raise NotUnderstood(f"the keyword {words[0].text}")
        return SimpleCommand(tuple(words), tuple(assignments), tuple(redirections))

    def _redirection(self) -> Redirection | None:
        operator = self.peek().lstrip("0123456789")
        if operator[:1] not in ("<", ">"):
            return None
        self._at += 1
        target = self._tokens[self._at] if self.peek() == "word" else None
        if operator == "<<" or not isinstance(target, Word):
            raise NotUnderstood("a here-document, or no target")
        self._at += 1
        return Redirection(operator, target)

    def _next_is_word(self, text: str) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at] == Word(text, is_literal=text != "{")

    def _skip_newlines(self) -> None:
        while self.peek() == "\n":
            self._at += 1
