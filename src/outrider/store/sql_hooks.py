"""Every statement on webhooks, whole and named, with one line of purpose each."""

# The columns of a webhook, in the order of the table and of `hooks.Hook`.
_COLUMNS = "id, session, person, seq, created, state, tries, due, why"
_HOOK = f"SELECT {_COLUMNS} FROM hooks "

# The one that is owed for this input, or was.
HOOK_BY_INPUT = _HOOK + "WHERE session = ?1 AND seq = ?2"

# Those still to be sent, the oldest first.
PENDING_HOOKS = _HOOK + "WHERE state <> 'sent' AND state = 'pending' ORDER BY created"

# How many are not sent, by whether that can still happen.
COUNT_HOOKS = "SELECT state, count(*) FROM hooks WHERE state <> 'sent' GROUP BY state"

# The person of a session that exists.
PERSON_OF_SESSION = "SELECT person FROM sessions WHERE id = ?1"

# One more is owed.
INSERT_HOOK = f"INSERT INTO hooks ({_COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"

# What an attempt came to. One that is settled stays as it is.
UPDATE_HOOK = "UPDATE hooks SET state = ?2, tries = ?3, due = ?4, why = ?5 WHERE id = ?1 AND state = 'pending'"

# A session goes, and with it what would have been told of it.
DELETE_HOOKS = "DELETE FROM hooks WHERE session = ?1"

# All of them, for a check or a salvage.
ALL_HOOKS = _HOOK + "ORDER BY id"

# Whether a store is new enough to hold webhooks.
HAS_HOOKS = "SELECT count(*) FROM sqlite_schema WHERE name = 'hooks'"
