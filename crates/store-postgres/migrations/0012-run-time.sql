-- The runs of a tenant in one state, in the order of their nominal instants. This statement locks the table only briefly,
-- because it creates no index of a partition. `store migrate` then creates the index of each partition, while members
-- write runs, and the index is valid once all partitions have theirs. A new partition gets its index when it is created.
create index run_time on only reveille.run (tenant, state, nominal, incarnation, version);
