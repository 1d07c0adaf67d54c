"""Every statement the store sends, whole and named, with one line of purpose each."""

# One session as `core.ports.Session` shows it.
_SESSION_COLUMNS = "id, person, name, workspace, title, created, touched / 1000, head, is_open, newest_input > saw"
_SELECT_SESSION = f"SELECT {_SESSION_COLUMNS} FROM sessions "

# A session of this person by its id.
SESSION_BY_ID = _SELECT_SESSION + "WHERE person = ?1 AND id = ?2"

# A session of this person by its name.
SESSION_BY_NAME = _SELECT_SESSION + "WHERE person = ?1 AND name = ?2"

# Sessions of this person whose id begins so; two rows mean that it is ambiguous.
SESSIONS_BY_PREFIX = _SELECT_SESSION + "WHERE person = ?1 AND id >= ?2 AND id < ?2 || 'g' LIMIT 2"

# This person's sessions, the latest first.
SESSIONS_OF = _SELECT_SESSION + "WHERE person = ?1 ORDER BY touched DESC LIMIT ?2"

# How many sessions a person has, to begin looking for a free name.
COUNT_SESSIONS_OF = "SELECT count(*) FROM sessions WHERE person = ?1"

# A new session, or one that was salvaged, before its entries.
INSERT_SESSION = """
INSERT INTO sessions (id, person, name, workspace, title, created, touched, generation, handed_over,
                      head, saw, newest_input, is_open, waits_since)
VALUES (?1, ?2, ?3, ?4, '', ?5, ?6, ?7, 0, 0, 0, 0, 0, NULL)
"""

# Where a session's journal stands: all that an append depends on.
SESSION_ROW = """
SELECT title, touched, generation, head, saw, newest_input, is_open, waits_since, payer
FROM sessions WHERE id = ?1
"""

# Where a session's journal stands after an append.
UPDATE_SESSION_ROW = """
UPDATE sessions SET title = ?2, touched = ?3, generation = ?4, head = ?5, saw = ?6, newest_input = ?7, is_open = ?8,
                    waits_since = ?9, payer = ?10
WHERE id = ?1
"""

# One more entry.
INSERT_ENTRY = "INSERT INTO entries (session, seq, at, kind, key, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6)"

# The entry that was written under this key.
ENTRY_BY_KEY = "SELECT seq, at, body FROM entries WHERE session = ?1 AND key = ?2"

# The journal after an entry; a negative limit means all of it.
ENTRIES_AFTER = "SELECT seq, at, body FROM entries WHERE session = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3"

# How many inputs of a session nobody has seen yet.
COUNT_UNSEEN = "SELECT count(*) FROM entries WHERE session = ?1 AND seq > ?2 AND kind = 'input'"

# Since when the oldest unseen input waits.
OLDEST_UNSEEN = "SELECT min(at) * 1000 FROM entries WHERE session = ?1 AND seq > ?2 AND kind = 'input'"

# The sessions that have something to do, longest waiting first.
SESSIONS_WITH_WORK = "SELECT id FROM sessions WHERE waits_since IS NOT NULL ORDER BY waits_since, id"

# Take a session over: a new generation, and whether the owner before let go of it.
SESSION_AND_OWNER = f"SELECT {_SESSION_COLUMNS}, generation, handed_over FROM sessions WHERE id = ?1"
SET_OWNER = "UPDATE sessions SET generation = ?2, handed_over = 0 WHERE id = ?1"

# Let go of a session, unless someone else holds it by now.
RELEASE_SESSION = "UPDATE sessions SET handed_over = 1 WHERE id = ?1 AND generation = ?2"

# Call a session otherwise.
RENAME_SESSION = "UPDATE sessions SET name = ?3 WHERE person = ?1 AND id = ?2"

# What of a session was searchable, so that the index can forget it.
SEARCHABLE_ENTRIES = "SELECT seq, body FROM entries WHERE session = ?1 AND kind IN ('input', 'reply') ORDER BY seq"

# Delete a session with its journal.
DELETE_ENTRIES = "DELETE FROM entries WHERE session = ?1"
DELETE_SESSION = "DELETE FROM sessions WHERE id = ?1 AND person = ?2"

# Every entry, in order, to check that each can be read.
ALL_ENTRIES = "SELECT session, seq, body FROM entries ORDER BY session, seq"

# Sessions whose columns disagree with their journal.
SESSION_ENTRY_COUNTS = """
SELECT id, head, (SELECT count(*) FROM entries WHERE session = id), (SELECT max(seq) FROM entries WHERE session = id)
FROM sessions
"""

# What a salvage can still find out about which sessions there were: from both ends, in case the middle is torn.
RECOVER_SESSION_IDS = (
    "SELECT id FROM sessions ORDER BY id",
    "SELECT id FROM sessions ORDER BY id DESC",
    "SELECT id FROM sessions INDEXED BY sessions_by_name ORDER BY person, name",
    "SELECT DISTINCT session FROM entries ORDER BY session",
    "SELECT DISTINCT session FROM entries ORDER BY session DESC",
)

# What a salvage copies of one session.
RECOVER_SESSION = "SELECT person, name, workspace, created, generation, head FROM sessions WHERE id = ?1"
RECOVER_ENTRIES = "SELECT seq, at, key, body FROM entries WHERE session = ?1 ORDER BY seq"

# How much a store holds, compared before and after a migration.
COUNTED_TABLES = (
    "SELECT name FROM sqlite_schema WHERE type = 'table' AND name IN ('sessions', 'entries', 'tasks', 'grants')"
)
COUNT_ROWS = "SELECT count(*) FROM {table}"

# The search index: texts without their content, where each stands in the journals, and how far each journal was read.
SEARCH_SCHEMA = """
CREATE VIRTUAL TABLE texts USING fts5(body, content='', tokenize='unicode61 remove_diacritics 2');
CREATE TABLE places (n INTEGER PRIMARY KEY, session TEXT NOT NULL, seq INTEGER NOT NULL, at INTEGER NOT NULL);
CREATE UNIQUE INDEX places_by_session ON places (session, seq);
CREATE TABLE cursors (session TEXT NOT NULL PRIMARY KEY, upto INTEGER NOT NULL) WITHOUT ROWID;
"""

# This person's sessions with entries the index has not read.
UNINDEXED_SESSIONS = """
SELECT s.id, coalesce(c.upto, 0) FROM store.sessions s LEFT JOIN cursors c ON c.session = s.id
WHERE s.person = ?1 AND s.head > coalesce(c.upto, 0)
"""

# Whether the index has read further than a journal goes: then it belongs to another past.
INDEX_IS_AHEAD = "SELECT 1 FROM cursors c JOIN store.sessions s ON s.id = c.session WHERE c.upto > s.head LIMIT 1"

# The entries of a session the index has not read.
UNINDEXED_ENTRIES = """
SELECT seq, at, kind, body FROM store.entries WHERE session = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3
"""

# Put one text into the index, and remember how far its journal was read.
INSERT_INDEXED_ENTRY = "INSERT INTO places (session, seq, at) VALUES (?1, ?2, ?3)"
INSERT_TEXT = "INSERT INTO texts (rowid, body) VALUES (?1, ?2)"
SET_CURSOR = "INSERT INTO cursors (session, upto) VALUES (?1, ?2) ON CONFLICT (session) DO UPDATE SET upto = ?2"

# Take one session out of the index; a text without content is removed by repeating it.
INDEXED_ENTRY = "SELECT n FROM places WHERE session = ?1 AND seq = ?2"
DELETE_TEXT = "INSERT INTO texts (texts, rowid, body) VALUES ('delete', ?1, ?2)"
DELETE_INDEXED_ENTRIES = "DELETE FROM places WHERE session = ?1"
DELETE_CURSOR = "DELETE FROM cursors WHERE session = ?1"

# Where this person's sessions hold the words, the latest first.
SEARCH_MATCHES = """
SELECT s.id, s.name, e.seq, e.at, e.body
FROM texts
JOIN places p ON p.n = texts.rowid
JOIN store.sessions s ON s.id = p.session AND s.person = ?2
JOIN store.entries e ON e.session = p.session AND e.seq = p.seq AND e.at = p.at
WHERE texts MATCH ?1
ORDER BY e.at DESC, e.seq DESC
LIMIT ?3
"""
