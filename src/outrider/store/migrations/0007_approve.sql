-- Answering questions has a scope of its own. The owner's keys that could answer keep that; those of other people do not:
-- their questions go to the owner.
UPDATE keys SET scopes = replace(scopes, ']', ',"approve"]')
WHERE person = 'owner' AND scopes LIKE '%"chat"%' AND scopes NOT LIKE '%"approve"%';
