-- Keys to the API. Of a secret only its digest is kept. `revoked` is 0 while a key holds; a name is free again afterwards.
CREATE TABLE keys (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    person TEXT NOT NULL,
    scopes TEXT NOT NULL,
    rate INTEGER,
    concurrent INTEGER,
    digest BLOB NOT NULL,
    created INTEGER NOT NULL,
    used INTEGER NOT NULL,
    revoked INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX keys_by_name ON keys (name) WHERE revoked = 0;
