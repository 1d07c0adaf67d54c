-- Sessions and their journals. The columns from `head` on repeat what the journal says, written in the same transaction.
CREATE TABLE sessions (
    id TEXT NOT NULL PRIMARY KEY,
    person TEXT NOT NULL,
    name TEXT NOT NULL,
    workspace TEXT NOT NULL,
    title TEXT NOT NULL,
    created INTEGER NOT NULL,
    touched INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    handed_over INTEGER NOT NULL,
    head INTEGER NOT NULL,
    saw INTEGER NOT NULL,
    newest_input INTEGER NOT NULL,
    is_open INTEGER NOT NULL,
    waits_since INTEGER
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX sessions_by_name ON sessions (person, name);
CREATE INDEX sessions_by_touch ON sessions (person, touched);
CREATE INDEX sessions_that_wait ON sessions (waits_since) WHERE waits_since IS NOT NULL;

CREATE TABLE entries (
    session TEXT NOT NULL REFERENCES sessions (id),
    seq INTEGER NOT NULL,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    key TEXT,
    body BLOB NOT NULL,
    PRIMARY KEY (session, seq)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX entries_by_key ON entries (session, key) WHERE key IS NOT NULL;
