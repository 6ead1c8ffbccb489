-- Number of times that an owner set the positions of the poller back to earlier instants, and the latest `closed` from
-- which an owner set the poller back. A creator that waits for the confirmation of a due row writes the row again if the
-- number has changed.
alter table reveille.position
    add column reopened bigint not null default 0,
    add column reopened_from bigint not null default 0;
