-- Tasks, and what people allowed beyond one call. `number` counts a person's tasks in the order they were made;
-- `waited` and `notify` begin as the wish says and may change later.
CREATE TABLE tasks (
    id TEXT NOT NULL PRIMARY KEY,
    session TEXT NOT NULL REFERENCES sessions (id),
    person TEXT NOT NULL,
    number INTEGER NOT NULL,
    kind TEXT NOT NULL,
    call TEXT NOT NULL,
    wish BLOB NOT NULL,
    created INTEGER NOT NULL,
    waited INTEGER NOT NULL,
    notify TEXT NOT NULL,
    state TEXT NOT NULL,
    pid INTEGER,
    started INTEGER,
    boot TEXT,
    child TEXT NOT NULL,
    exit_code INTEGER,
    ended INTEGER NOT NULL,
    why TEXT NOT NULL,
    is_told INTEGER NOT NULL,
    notices INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX tasks_by_call ON tasks (session, call);
CREATE INDEX tasks_of_person ON tasks (person, number);
CREATE INDEX tasks_of_session ON tasks (session, number);
CREATE INDEX tasks_open ON tasks (session) WHERE state IN ('queued', 'running', 'stalled');
CREATE INDEX tasks_by_child ON tasks (child) WHERE child <> '';

CREATE TABLE grants (
    id TEXT NOT NULL PRIMARY KEY,
    person TEXT NOT NULL,
    scope TEXT NOT NULL,
    place TEXT NOT NULL,
    need TEXT NOT NULL,
    created INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX grants_by_reach ON grants (person, scope, place, need);
