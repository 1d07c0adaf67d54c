-- Which folder the workspace of a session is: device, inode and the boot in which the device had this number. Empty until
-- the first use; as text, since an inode number may be larger than an INTEGER.
ALTER TABLE sessions ADD COLUMN folder TEXT NOT NULL DEFAULT '';
