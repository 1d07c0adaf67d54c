"""Every statement on webhooks, whole and named, with one line of purpose each."""

# The columns of a webhook, in the order of the table and of `hooks.Hook`.
_WEBHOOK_COLUMNS = "id, session, person, seq, created, state, tries, due, why"
_SELECT_WEBHOOK = f"SELECT {_WEBHOOK_COLUMNS} FROM hooks "

# The one that is owed for this input, or was.
WEBHOOK_BY_INPUT = _SELECT_WEBHOOK + "WHERE session = ?1 AND seq = ?2"

# Those still to be sent, the oldest first.
PENDING_WEBHOOKS = _SELECT_WEBHOOK + "WHERE state <> 'sent' AND state = 'pending' ORDER BY created"

# How many are not sent, by whether that can still happen.
COUNT_WEBHOOKS = "SELECT state, count(*) FROM hooks WHERE state <> 'sent' GROUP BY state"

# The person of a session that exists.
PERSON_OF_SESSION = "SELECT person FROM sessions WHERE id = ?1"

# One more is owed.
INSERT_WEBHOOK = f"INSERT INTO hooks ({_WEBHOOK_COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"

# What an attempt came to. One that is settled stays as it is.
UPDATE_WEBHOOK = "UPDATE hooks SET state = ?2, tries = ?3, due = ?4, why = ?5 WHERE id = ?1 AND state = 'pending'"

# A session goes, and with it what would have been told of it.
DELETE_WEBHOOKS = "DELETE FROM hooks WHERE session = ?1"

# All of them, for a check or a salvage.
ALL_WEBHOOKS = _SELECT_WEBHOOK + "ORDER BY id"

# Whether a store is new enough to hold webhooks.
HAS_WEBHOOKS = "SELECT count(*) FROM sqlite_schema WHERE name = 'hooks'"
