-- What each key may spend, and what it has spent on each day (in UTC, counted from 1970), in billionths of a dollar: whole
-- numbers, so that sums are exact. `payer` is the key that pays for what a session does now.
ALTER TABLE keys ADD COLUMN spend INTEGER;
ALTER TABLE keys ADD COLUMN per TEXT NOT NULL DEFAULT 'total';
ALTER TABLE sessions ADD COLUMN payer TEXT NOT NULL DEFAULT '';
CREATE TABLE key_spend (
    key TEXT NOT NULL,
    day INTEGER NOT NULL,
    billionths INTEGER NOT NULL,
    PRIMARY KEY (key, day)
) STRICT, WITHOUT ROWID;
