"""Every statement on keys, whole and named, with one line of purpose each."""

# The columns of a key, in the order of the table and of `read_keys.KeyRow`.
_KEY_COLUMNS = "id, name, person, scopes, rate, concurrent, digest, created, used, revoked, spend, per"
_SELECT_KEY = f"SELECT {_KEY_COLUMNS} FROM keys "

# A key by its id, whether or not it holds.
KEY_BY_ID = _SELECT_KEY + "WHERE id = ?1"

# The key of this name that holds.
ACTIVE_KEY_BY_NAME = _SELECT_KEY + "WHERE name = ?1 AND revoked = 0"

# Every key, the oldest first.
ALL_KEYS = _SELECT_KEY + "ORDER BY created, id"

# One more key.
INSERT_KEY = f"INSERT INTO keys ({_KEY_COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0, 0, ?9, ?10)"

# It opens nothing any more.
REVOKE_KEY = "UPDATE keys SET revoked = ?2 WHERE id = ?1 AND revoked = 0"

# It was used now, unless that was written down less than a minute ago; a clock set back counts as a minute.
TOUCH_KEY = "UPDATE keys SET used = ?2 WHERE id = ?1 AND abs(?2 - used) >= 60000"

# An entry that this key pays for has cost something.
ADD_SPEND = """
INSERT INTO key_spend (key, day, billionths) VALUES (?1, ?2, ?3)
ON CONFLICT (key, day) DO UPDATE SET billionths = billionths + ?3
"""

# What a key has paid from this day on.
SPENT_SINCE = "SELECT coalesce(sum(billionths), 0) FROM key_spend WHERE key = ?1 AND day >= ?2"

# Everybody who has a session or a key: how many of each (keys that hold), and when they were last active.
PEOPLE = """
SELECT person, sum(sessions), sum(keys), max(active)
FROM (SELECT person, count(*) AS sessions, 0 AS keys, max(touched) / 1000 AS active FROM sessions GROUP BY person
      UNION ALL SELECT person, 0, sum(revoked = 0), max(used) FROM keys GROUP BY person)
GROUP BY person ORDER BY max(active) DESC, person
"""

# Whether a store is new enough to hold keys.
HAS_KEYS = "SELECT count(*) FROM sqlite_schema WHERE name = 'keys'"

# How many there are, for a salvage that carries none over.
COUNT_KEYS = "SELECT count(*) FROM keys"
