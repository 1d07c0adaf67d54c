"""Every statement on tasks and grants, whole and named, with one line of purpose each."""

# The columns of a task, in the order of the table and of `rows.TaskRow`.
_TASK_COLUMNS = (
    "id, session, person, number, kind, call, wish, created, waited, notify, state, pid, started, boot, child, "
    "exit_code, ended, why, is_told, notices"
)

# A task that has not ended; the index of open tasks says it in the same words.
_IS_OPEN = "state IN ('queued', 'running', 'stalled')"

# Tasks, each with the folder of its session.
_SELECT_TASK = f"SELECT {', '.join(f't.{name}' for name in _TASK_COLUMNS.split(', '))}, s.workspace FROM tasks t "
_JOIN_SESSION = "JOIN sessions s ON s.id = t.session "

# A task by its id.
TASK_BY_ID = _SELECT_TASK + _JOIN_SESSION + "WHERE t.id = ?1"

# The task that a call of a session began.
TASK_BY_CALL = _SELECT_TASK + _JOIN_SESSION + "WHERE t.session = ?1 AND t.call = ?2"

# Tasks of this person whose id begins so; two rows mean that it is ambiguous.
TASKS_BY_PREFIX = _SELECT_TASK + _JOIN_SESSION + "WHERE t.person = ?1 AND t.id >= ?2 AND t.id < ?2 || '{' LIMIT 2"

# This person's tasks, the latest first: all, those of a session, and of both only the open ones.
TASKS_OF = _SELECT_TASK + _JOIN_SESSION + "WHERE t.person = ?1 ORDER BY t.number DESC LIMIT ?2"
TASKS_IN = _SELECT_TASK + _JOIN_SESSION + "WHERE t.person = ?1 AND t.session = ?3 ORDER BY t.number DESC LIMIT ?2"
_SELECT_OPEN_TASK = _SELECT_TASK + "INDEXED BY tasks_open " + _JOIN_SESSION + f"WHERE t.{_IS_OPEN} "
OPEN_TASKS_OF = _SELECT_OPEN_TASK + "AND t.person = ?1 ORDER BY t.number DESC LIMIT ?2"
OPEN_TASKS_IN = _SELECT_OPEN_TASK + "AND t.person = ?1 AND t.session = ?3 ORDER BY t.number DESC LIMIT ?2"

# Every open task, the oldest first.
OPEN_TASKS = _SELECT_OPEN_TASK + "ORDER BY t.created, t.id"

# The open task whose body is this session.
TASK_OF_CHILD = (
    _SELECT_TASK
    + _JOIN_SESSION
    + f"WHERE t.child = ?1 AND t.child <> '' AND t.{_IS_OPEN} ORDER BY t.number DESC LIMIT 1"
)

# Whose a session is, for a task in it.
SESSION_OF_TASK = "SELECT person, workspace FROM sessions WHERE id = ?1"

# How many tasks of a session are open.
COUNT_OPEN_TASKS = f"SELECT count(*) FROM tasks INDEXED BY tasks_open WHERE session = ?1 AND {_IS_OPEN}"

# The number of the next task of a person.
NEXT_TASK_NUMBER = "SELECT coalesce(max(number), 0) + 1 FROM tasks WHERE person = ?1"

# One more task.
INSERT_TASK = f"""
INSERT INTO tasks ({_TASK_COLUMNS})
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)
"""

# What became of a task: all that changes about one.
UPDATE_TASK = """
UPDATE tasks SET waited = ?2, notify = ?3, state = ?4, pid = ?5, started = ?6, boot = ?7, child = ?8, exit_code = ?9,
                 ended = ?10, why = ?11, is_told = ?12, notices = ?13
WHERE id = ?1
"""

# Delete what hangs on a session.
DELETE_TASKS = "DELETE FROM tasks WHERE session = ?1"
DELETE_SESSION_PERMISSIONS = "DELETE FROM grants WHERE scope = 'session' AND place = ?1"

# The questions of a session and their answers.
QUESTIONS_AND_ANSWERS = """
SELECT seq, at, body FROM entries WHERE session = ?1 AND kind IN ('asked', 'answered') ORDER BY seq
"""

# Grants as `core.approve.Grant` shows them.
_SELECT_PERMISSION = "SELECT id, person, scope, place, need, created FROM grants "
PERMISSION_BY_ID = _SELECT_PERMISSION + "WHERE id = ?1"
SAME_PERMISSION = _SELECT_PERMISSION + "WHERE person = ?1 AND scope = ?2 AND place = ?3 AND need = ?4"

# All that a person allowed, what holds in the same place side by side.
PERMISSIONS_OF = _SELECT_PERMISSION + "WHERE person = ?1 ORDER BY scope, place, need"

# Allow something, and take it back.
INSERT_PERMISSION = "INSERT INTO grants (id, person, scope, place, need, created) VALUES (?1, ?2, ?3, ?4, ?5, ?6)"
DELETE_PERMISSION = "DELETE FROM grants WHERE person = ?1 AND id = ?2"

# Whether a store is new enough to hold tasks.
HAS_TASKS = "SELECT count(*) FROM sqlite_schema WHERE name IN ('tasks', 'grants')"

# Every task and grant, to check and to salvage them: from both ends, in case the middle is torn.
ALL_TASKS = f"SELECT {_TASK_COLUMNS} FROM tasks ORDER BY id"
ALL_TASKS_BACKWARDS = ALL_TASKS + " DESC"
ALL_PERMISSIONS = _SELECT_PERMISSION + "ORDER BY id"
ALL_PERMISSIONS_BACKWARDS = ALL_PERMISSIONS + " DESC"

# What a salvage writes; two rows that cannot both be right are settled for the first.
RECOVER_TASK = INSERT_TASK.replace("INSERT", "INSERT OR IGNORE", 1)
RECOVER_PERMISSION = INSERT_PERMISSION.replace("INSERT", "INSERT OR IGNORE", 1)
