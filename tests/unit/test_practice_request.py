"""Which words the practice model understands as which steps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.models.practice import parse_request
from outrider.models.practice.request import MOST_STEPS
from outrider.models.practice.steps import (
    Appending,
    Listing,
    Puzzled,
    Reading,
    Ref,
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


def found(words: str, path: str | Ref = "", glob: str = "") -> Searching:
    return Searching(words, words, path, glob)


PHRASES: list[tuple[str, list[Step]]] = [
    ("list the files", [Listing()]),
    ("List all files, please.", [Listing()]),
    ("ls", [Listing()]),
    ("ls -la src", [Listing("src")]),
    ("what files are there?", [Listing()]),
    ("which files do you see", [Listing()]),
    ("show me the files in docs", [Listing("docs")]),
    ("what is in src?", [Listing("src")]),
    ("what's in the src folder?", [Listing("src")]),
    ("what's in here?", [Listing()]),
    ("Look around", [Listing()]),
    ("list src/outrider", [Listing("src/outrider")]),
    ("show src/", [Listing("src")]),
    ("count files", [Listing(".", counts=True)]),
    ("how many files are in src?", [Listing("src", counts=True)]),
    ("How many files do we have", [Listing(".", counts=True)]),
    ("show README.md", [Reading("README.md")]),
    ("read the file README.md", [Reading("README.md")]),
    ("can you show me what is in README.md?", [Reading("README.md")]),
    ("what is in README.md", [Reading("README.md")]),
    ("what does notes.txt say?", [Reading("notes.txt")]),
    ("please could you show me the contents of src/main.py?", [Reading("src/main.py")]),
    ("cat a.txt", [Reading("a.txt")]),
    ('open "my notes.txt"', [Reading("my notes.txt")]),
    ("read `weird name, then.txt`", [Reading("weird name, then.txt")]),
    ("read ./a.txt", [Reading("a.txt")]),
    ("show me lines 10-20 of a.py", [Reading("a.py", first=10, limit=11)]),
    ("line 3 of a.py", [Reading("a.py", first=3, limit=1)]),
    ("first 5 lines of README.md", [Reading("README.md", limit=5)]),
    ("head a.txt", [Reading("a.txt", limit=10)]),
    ("how many lines has x.py", [Reading("x.py", "lines")]),
    ("How many lines are in x.py?", [Reading("x.py", "lines")]),
    ("count the lines in x.py", [Reading("x.py", "lines")]),
    ("how many words does essay.md have?", [Reading("essay.md", "words")]),
    ("summarise README.md", [Reading("README.md", "summary")]),
    ("give me a short summary of docs/design.md", [Reading("docs/design.md", "summary")]),
    ("what is README.md about?", [Reading("README.md", "summary")]),
    ("find TODO", [found("TODO")]),
    ("search for TODO in src", [found("TODO", "src")]),
    ("find the word TODO in *.py", [found("TODO", "", "*.py")]),
    ("grep import in python files", [found("import", "", "*.py")]),
    ("find foo in all the .md files", [found("foo", "", "*.md")]),
    ('search src for "def main"', [found("def main", "src")]),
    ("which files mention `foo bar`?", [found("foo bar")]),
    ("where is parse_request used?", [found("parse_request")]),
    ("search for foo everywhere in the project", [found("foo everywhere")]),
    ("find a.b(c)", [Searching("a.b(c)", r"a\.b\(c\)")]),
    ("find /a+b/ in src", [Searching("/a+b/", "a+b", "src")]),
    ("create notes.txt with hello world", [Writing("notes.txt", "hello world")]),
    ("write notes.txt containing: a\nb, then c\n\nd", [Writing("notes.txt", "a\nb, then c\n\nd")]),
    ("write hello world to out.txt", [Writing("out.txt", "hello world")]),
    ("write 'it's fine' to a.txt", [Writing("a.txt", "it's fine")]),
    ('create a file called "my notes.txt" with the text "hi, then bye"', [Writing("my notes.txt", "hi, then bye")]),
    ("create hello.py:\n```python\nprint('hi')\n```", [Writing("hello.py", "print('hi')")]),
    ("make an empty file x.txt", [Writing("x.txt", "")]),
    ("append milk to list.txt", [Appending("list.txt", "milk")]),
    ('add the line "x = 1" to the end of a.py', [Appending("a.py", "x = 1")]),
    ("append to log.txt: all\nwell", [Appending("log.txt", "all\nwell")]),
    ("replace A with B in FILE.txt", [Replacing("FILE.txt", "A", "B")]),
    ('change "old name" to "new name" in a.txt', [Replacing("a.txt", "old name", "new name")]),
    ("in a.txt, replace foo with bar", [Replacing("a.txt", "foo", "bar")]),
    ("replace all foo with bar in a.txt", [Replacing("a.txt", "foo", "bar", everywhere=True)]),
    ("run `ls -la`", [Running("ls -la")]),
    ("run ls -la", [Running("ls -la")]),
    ("Execute `make -j4`.", [Running("make -j4")]),
    ("Could you run make test?", [Running("make test")]),
    ("run the command ls -l, please", [Running("ls -l")]),
    ("run:\n```sh\nls\npwd\n```", [Running("ls\npwd")]),
    ("$ ls ..", [Running("ls ..")]),
    ("run echo what? no!", [Running("echo what? no!")]),
    ("run echo a; echo b && c | d", [Running("echo a; echo b && c | d")]),
    ("run if true; then echo a; fi", [Running("if true; then echo a; fi")]),
    ('run echo "a, then b" and tell me what it says', [Running('echo "a, then b"')]),
    ("run echo add this: that", [Running("echo add this: that")]),
    ("in the background run sleep 5 && echo done and tell me", [Running("sleep 5 && echo done", background=True)]),
    ("start make -k in the background", [Running("make -k", background=True)]),
    ("start `npm run dev`", [Running("npm run dev", background=True)]),
    ("run `make` in the background and tell me when it is done", [Running("make", background=True)]),
    ("Run make in the background. When it is done, let me know.", [Running("make", background=True)]),
    ("run make as a background task, then list tasks", [Running("make", background=True), Tasks()]),
    ("run grep 'in the background' a.txt", [Running("grep 'in the background' a.txt")]),
    ("write a.sh saying echo hi, then run sh a.sh", [Writing("a.sh", "echo hi"), Running("sh a.sh")]),
    ("run sh a.sh then read out.txt", [Running("sh a.sh"), Reading("out.txt")]),
    ("1. run make\n2. read a.txt", [Running("make"), Reading("a.txt")]),
    ("list the files and run make test", [Listing(), Running("make test")]),
    ("write a.txt saying walk and run fast", [Writing("a.txt", "walk and run fast")]),
    ("write a.txt: x\nrun ls", [Writing("a.txt", "x\nrun ls")]),
    ("say run ls", [Saying("run ls")]),
    ("run the tests", [Puzzled("run the tests")]),
    ("run it", [Puzzled("run it")]),
    ("start with a.txt", [Puzzled("start with a.txt")]),
    ("run `ls` in the folder src", [Puzzled("run `ls` in the folder src")]),
    ("do not run ls", [Puzzled("do not run ls")]),
    ("if it fails, run `make clean`", [Puzzled("if it fails, run `make clean`")]),
    ("unless it is done, kill t-abc", [Puzzled("unless it is done, kill t-abc")]),
    ("what is running?", [Tasks(only_open=True)]),
    ("What's still running?", [Tasks(only_open=True)]),
    ("show me the running tasks", [Tasks(only_open=True)]),
    ("list tasks", [Tasks()]),
    ("list tasks/", [Listing("tasks/")]),
    ("show my background tasks", [Tasks()]),
    ("show the output of task t-abc123", [Tending("read", "t-abc123")]),
    ("what did `t-abc123` say so far?", [Tending("read", "t-abc123")]),
    ("is t-abc123 done yet?", [Tending("read", "t-abc123")]),
    ("show the output of the last task", [Tending("read")]),
    ("wait for t-abc123", [Tending("wait", "t-abc123")]),
    ("wait for the last task to finish", [Tending("wait")]),
    ("kill task t-abc123", [Tending("kill", "t-abc123")]),
    ("stop the last task", [Tending("kill")]),
    ("kill it and list the tasks", [Tending("kill"), Tasks()]),
    ("say pong", [Saying("pong")]),
    ("Reply with exactly: pong", [Saying("pong")]),
    ("hello", [Talking("hello")]),
    ("Hi there!", [Talking("hello")]),
    ("help", [Talking("help")]),
    ("?", [Talking("help")]),
    ("Hello! What can you do?", [Talking("help")]),
    ("who are you?", [Talking("self")]),
    ("are you a real AI?", [Talking("self")]),
    ("how are you?", [Talking("mood")]),
    ("thanks!", [Talking("thanks")]),
    ("bye", [Talking("bye")]),
    ("how do I use a real model?", [Talking("model")]),
    ("rename a.txt to b.txt", [Unable("rename")]),
    ("please delete a.txt", [Unable("delete")]),
    ("write hello.txt saying hi, then read it", [Writing("hello.txt", "hi"), Reading(Ref())]),
    ("list the files and then read the first one", [Listing(), Reading(Ref(0))]),
    ("read README.md and summarise it", [Reading("README.md"), Reading(Ref(), "summary")]),
    ("Read a.txt. Then list src.", [Reading("a.txt"), Listing("src")]),
    ("1. list the files\n2. read a.txt", [Listing(), Reading("a.txt")]),
    ("list src; count the files in docs", [Listing("src"), Listing("docs", counts=True)]),
    ("count the lines in a.txt and tell me", [Reading("a.txt", "lines")]),
    ("what's the capital of France?", [Puzzled("what's the capital of France?")]),
    ("write a poem", [Puzzled("write a poem")]),
    ("", [Puzzled("")]),
]


@pytest.mark.parametrize(("text", "steps"), PHRASES, ids=[text for text, _ in PHRASES])
def test_a_request_in_plain_words_is_understood(text: str, steps: list[Step]) -> None:
    assert parse_request(text) == steps


@pytest.mark.parametrize("text", ["where is main defined?", "find the definition of main()"])
def test_a_definition_is_searched_by_how_languages_write_one(text: str) -> None:
    [step] = parse_request(text)
    assert isinstance(step, Searching)
    assert (step.words, step.path, step.glob) == ("main", "", "")
    assert step.pattern.startswith(r"\b(?:def|class|function|")


@settings(max_examples=300, deadline=None)
@given(st.text() | st.lists(st.sampled_from([t for t, _ in PHRASES] + list("\"'`:;,. \n")), max_size=12).map(" ".join))
def test_no_text_makes_the_parser_fail(text: str) -> None:
    assert len(parse_request(text)) >= 1


@pytest.mark.parametrize(
    "text",
    [
        "“" * 20_000,
        "'a " * 20_000,
        "read" + " " * 1_900 + "x y",
        "write x " * 5_000,
        ". A" * 30_000,
        "please " * 280,
        "find " + "x in " * 390,
        "x" * 1_000_000,
        "run " + " " * 99_000 + "x",
        "and run " * 12_000,
        "then run x " * 9_000,
        "write a to b and run " * 4_000,
        "run x in the" + " " * 50_000 + "background",
    ],
    ids=[
        *("quotes", "apostrophes", "gap", "writes", "sentences", "courtesy", "places", "length"),
        *("late", "ands", "thens", "joined", "behind"),
    ],
)
@pytest.mark.timeout(20)
def test_text_made_to_be_hard_to_read_is_given_up_on(text: str) -> None:
    assert 1 <= len(parse_request(text)) <= MOST_STEPS + 1
