"""Which phrases the practice model knows, and the step each of them means. The first that fits a clause is taken."""

import re
from collections.abc import Callable
from typing import Literal

from outrider.models.practice.steps import (
    Appending,
    Listing,
    Reading,
    Replacing,
    Running,
    Saying,
    Searching,
    Step,
    Talking,
    Tasks,
    Tending,
    Unable,
    Writing,
)
from outrider.models.practice.words import Words, phrase

Build = Callable[[Words], Step | None]
_META = re.compile(r"([\\.^$*+?{}\[\]|()])")
_KINDS = "def|class|function|func|fn|const|let|var|type|struct|interface|enum|trait|module"


def _write(words: Words) -> Step | None:
    is_clear = words.has("file") or words.is_file() or words.has("content")
    return Writing(words.path(), words.text("content")) if is_clear else None


def _write_into(words: Words) -> Step | None:
    return Writing(words.path(), words.text("content")) if words.is_file() else None


def _append(words: Words) -> Step | None:
    return Appending(words.path(), words.text("content")) if words.is_file() else None


def _replace(words: Words) -> Step:
    return Replacing(words.path(), words.text("old"), words.text("new"), words.has("every"))


def _list(words: Words) -> Step:
    return _look_in(words) if words.has("path") else Listing()


def _count(words: Words) -> Step:
    return Listing(words.path(), counts=True)


def _look_in(words: Words) -> Step:
    return Reading(words.path()) if words.is_file() else Listing(words.path())


def _read(words: Words) -> Step:
    path = words.path()
    return Listing(path.rstrip("/")) if isinstance(path, str) and len(path) > 1 and path[-1] == "/" else Reading(path)


def _first_lines(words: Words) -> Step:
    return Reading(words.path(), limit=max(1, words.number("count", 10)))


def _lines(words: Words) -> Step:
    first = max(1, words.number("first", 1))
    return Reading(words.path(), first=first, limit=max(1, words.number("last", first) - first + 1))


def _count_lines(words: Words) -> Step:
    return Reading(words.path(), "lines")


def _count_words(words: Words) -> Step:
    return Reading(words.path(), "words")


def _summarise(words: Words) -> Step:
    return Reading(words.path(), "summary")


def _search(words: Words) -> Step | None:
    shown, (path, glob) = words.text("pattern"), words.scope()
    if not shown:
        return None
    is_regex = not words.is_quoted("pattern") and len(shown) > 2 and shown[0] == shown[-1] == "/"
    return Searching(shown, shown[1:-1] if is_regex else _META.sub(r"\\\1", shown), path, glob)


def _define(words: Words) -> Step:
    name = words.text("name").removesuffix("()")
    escaped = _META.sub(r"\\\1", name)
    return Searching(name, rf"\b(?:{_KINDS})\s+{escaped}\b|^\s*{escaped}\s*(?::[^=]*)?=[^=]", *words.scope())


def _run(words: Words) -> Step:
    return Running(words.text("command"), words.has("background"))


def _tend(action: Literal["read", "wait", "kill"]) -> Build:
    def build(words: Words) -> Step | None:
        task = words.task()
        return None if task is None else Tending(action, task)

    return build


def _tasks(*, only_open: bool) -> Build:
    return lambda words: Tasks(only_open)


def _say(words: Words) -> Step:
    return Saying(words.text("text"))


def _unable(words: Words) -> Step:
    return Unable(words.text("text").lower())


def _talk(step: Talking) -> Build:
    return lambda words: step


_HELP, _SELF = _talk(Talking("help")), _talk(Talking("self"))
_PHRASES: list[tuple[str, Build]] = [
    (
        "(hello|hi|hey|hiya|howdy|greetings|good (morning|afternoon|evening|day))[ (there|outrider|again|you)]",
        _talk(Talking("hello")),
    ),
    ("[/]help|help me|i need help|commands|usage|examples|example", _HELP),
    ("what (can|do|could) (you|i|we) (do|ask|understand|say|know){few}", _HELP),
    ("how (do|does|can) (you|i|this|it) (work|use (you|this|it))", _HELP),
    ("(who|what) (are|r) (you|u){few}|(introduce|tell me about) yourself", _SELF),
    ("what('s| is) (your name|outrider|this)", _SELF),
    (
        "(are|r) you [an |a ][real |really ](ai|llm|chatgpt|gpt|claude|human|bot|robot|person|[language ]model){rest}",
        _SELF,
    ),
    ("(are|r) you real|(which|what) (llm|model) (are you|is this|do you use){rest}", _SELF),
    ("how are you< (doing|today)>|how's it going", _talk(Talking("mood"))),
    (
        "[many ](thanks|thank you|thx|cheers){few}|(great|nice|good|well done|perfect|cool)[ (job|work)]",
        _talk(Talking("thanks")),
    ),
    ("bye|goodbye|good bye|see you[ later]|quit|exit", _talk(Talking("bye"))),
    (
        "[how (do|can) i ](use|set up|plug in|connect|configure|get|switch to|add) [a |an |the ]"
        "[(real|proper|better|another|different|other) ](llm|model)",
        _talk(Talking("model")),
    ),
    (
        "(say|echo|repeat|reply with|answer with|respond with)< (exactly|only|just|the word|the words|back)>[:] {text}",
        _say,
    ),
    ("(append|add|insert|put) (to|at the end of) {file}(:| {says}[:]){s}{content}", _append),
    (
        "(append|add|insert) [[the |a ](line|text|word|words)[:] ]{content} "
        "(to|onto|into|at the (end|bottom) of) [the (end|bottom) of ]{file}",
        _append,
    ),
    ("(create|write|make|save|add|put|generate|touch) {new}[,]{s}(: | {says}{s}[:]){s}{content}", _write),
    (
        "(write|save|put|store) [[the ](text|word|words|line|lines)[:] ]{content} (to|into|in|as) [a |an ]{file}",
        _write_into,
    ),
    ("(in|inside) [a ]{file}[,] (write|put|save)[:] {content}", _write_into),
    ("(create|make|touch|write) {new}", _write),
    ("(replace|change|substitute|swap|rename) {old} (with|by|to|into|for) {replacement} in {file}", _replace),
    ("in {file}[,] (replace|change|substitute) {old} (with|by|to|into|for) {replacement}", _replace),
    ("run {command}[{background}]", _run),
    (
        "(what|which)[ (tasks|jobs|commands|things)]('s| is| are) [still ](running|going on|in the background){few}"
        "|(is|are) [there ](anything|something|any (tasks|jobs|commands)) [still ](running|in the background)"
        "|((list|show|see|display|give)[ me] |)[all ][the |my |your ](running|open|current) (tasks|jobs|commands)",
        _tasks(only_open=True),
    ),
    (
        "((list|show|see|display|give|ls)[ me] |)[all ][the |my |your |of the ]"
        "[background ](tasks|jobs)|(what|which) (tasks|jobs) (are there|do (you|i|we) have)",
        _tasks(only_open=False),
    ),
    (
        "[(read|show|print|display|give|view|see|get|cat)[ me] |what (is|was) |what's ][the ][last |latest |current ]"
        "(output|log|logs|status|state|result) (of|from|for) {task}",
        _tend("read"),
    ),
    ("(read|show|view|check|check on|look at)[ me] {thetask}", _tend("read")),
    ("what (did|does|has) {task} (say|said|write|written|print|printed|do|done|output)[ so far]", _tend("read")),
    ("(is|has) {named} (done|finished|ended|over|ready|running|still running)[ yet]", _tend("read")),
    ("how (is|did|does) {named}[ (doing|going|end|go)]", _tend("read")),
    ("wait (for|until|till) {task}{ending}", _tend("wait")),
    ("(kill|stop|end|cancel|abort|terminate) {task}", _tend("kill")),
    (
        "[(read|show|print|display|give|view|see|get) [me ]][the ]first [{n} ](line|lines) (of|in|from) {file}",
        _first_lines,
    ),
    ("head [-[n]{s}{n} ]{file}", _first_lines),
    (
        "[(read|show|print|display|give|view|see|get) [me ]](line|lines) {from}[{s}(-|–|to|until|through){s}{to}] "
        "(of|in|from) {file}",
        _lines,
    ),
    (
        "how many lines [of (code|text) ](has|have|does|do|in|of|are [there ]in) {file}[ (have|contain|has|hold)]",
        _count_lines,
    ),
    ("(count|what is|get) [the ][number of ]lines (in|of) {file}", _count_lines),
    ("([the ]line count (of|for)|how long is|wc -l) {file}", _count_lines),
    ("how many words (has|have|does|do|in|of|are [there ](in|inside)) {file}[ (have|contain|has|hold)]", _count_words),
    ("(count [the ]words (in|of)|[the ]word count (of|for)|wc -w) {file}", _count_words),
    ("how many (files|things|items)[ and folders][ (are there|are|do (we|i|you) have|exist)]{where}", _count),
    ("count <(all|the) >(files|items){where}", _count),
    ("how many files (has|does) {folder}[ (have|contain|hold)]", _count),
    (
        "((list|show|see|display|print|give|get)[ me]|ls|dir|what are|what|which|view) <(all|of|the|your|my|our) >"
        "(file|files|folder|folders|directory|directories|content|contents|everything|things)[ and (files|folders)]"
        "[ (are|is|exist|do (you see|you have|we have|i have)|can you see)]{where}",
        _list,
    ),
    ("(list|ls|dir)[ (-l|-a|-la|-al)][ [in ]{folder}]", _list),
    ("what('s| is| do we have) {here}|look around|what do you see|where (are we|am i)", _list),
    (
        "(summarise|summarize|sum up|outline|tldr|tl;dr|describe|explain"
        "|[(give|write|show) [me ]][a |the ][short |brief ](summary|overview|outline|gist) of) {file}",
        _summarise,
    ),
    ("what('s| is) {file} about", _summarise),
    (
        "where (is|are|do we|do i) [define ][the ][(function|class|method|variable|constant) ]{name} "
        "(defined|declared|implemented|created){within}",
        _define,
    ),
    (
        "[(find|show|search for|look for|locate|where is) [me ]][the ]definition of [the ][(function|class|method) ]"
        "{name}{within}",
        _define,
    ),
    (
        "where (is|are|do we use|does) {word}[ (mentioned|used|called|referenced|imported|appear|occur)]{within}",
        _search,
    ),
    ("(which|what) files (mention|contain|use|import|have|say|include|reference) {pattern}{within}", _search),
    ("(search|grep) [(in|through) ]{place} for {pattern}", _search),
    (
        "(find|search|grep|look|locate)< (me|for|up)> <(all|every|any|the) >"
        "[(occurrence|occurrences|mention|mentions|use|uses|reference|references|line|lines|word|text|string|phrase)"
        "[ (of|to|with|containing|matching|that mention)] ]{pattern}{within}",
        _search,
    ),
    (
        "what('s| is| are the contents| is the content) (in|inside|within|of) [the ][(file|folder|directory) ]{path}"
        "[ (folder|directory|file)]",
        _look_in,
    ),
    ("what does {file} (say|contain|hold|look like)", _read),
    ("(what('s| is)|tell me) the (content|contents) of {file}", _read),
    (
        "(read|show|open|display|print|cat|view|see|get|give|look at|look into)[ me][ all of] "
        "[[the ][whole |full ](content|contents) of ]{file}",
        _read,
    ),
]
_NO_TOOL = "rename|move|delete|remove|copy|erase|rm|mv|cp|download|install|browse|email|deploy|commit|push"
GRAMMAR = [
    *((phrase(notation), build) for notation, build in _PHRASES),
    (re.compile(rf"(?P<text>{_NO_TOOL})\b.*", re.IGNORECASE | re.DOTALL), _unable),
]
