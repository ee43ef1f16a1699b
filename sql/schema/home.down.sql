-- The last step of a downgrade to nothing: the table of revisions, and the schema.

drop table if exists ledger.schema_version;
drop schema ledger;
