-- What meets here knows this place from another by it.
alter table reveille_coordination.meta add column id uuid not null default gen_random_uuid();
