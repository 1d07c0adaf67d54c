-- Webhooks that are owed, or were. One is owed for each input that asked for it; its id is fixed when that was accepted,
-- and every attempt to send it bears that id. `due` is when to try next; `why` what the last attempt came to.
CREATE TABLE hooks (
    id TEXT NOT NULL PRIMARY KEY,
    session TEXT NOT NULL REFERENCES sessions (id),
    person TEXT NOT NULL,
    seq INTEGER NOT NULL,
    created INTEGER NOT NULL,
    state TEXT NOT NULL,
    tries INTEGER NOT NULL,
    due INTEGER NOT NULL,
    why TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX hooks_by_input ON hooks (session, seq);
CREATE INDEX hooks_not_sent ON hooks (state, created) WHERE state <> 'sent';
