-- 0001_schema: the schema belongs to ledger_owner. Whoever installs is a member of ledger_owner and ledger_fn.
--
-- Locks        one row of pg_namespace and the new table of revisions, for milliseconds.
-- Rewrites     nothing.
-- Transaction  runs inside one.
-- Reversible   yes, by 0001_roles.down.sql.
-- Needs        the roles, and membership in ledger_owner and ledger_fn (16+: with set), or the right to grant it.

set local search_path = pg_catalog, pg_temp;
set local lock_timeout = '1s';
set local statement_timeout = '60s';

do $$
declare
    role_name text;
    privilege text := case
        when current_setting('server_version_num')::integer >= 160000 then 'set' else 'member'
    end;
begin
    foreach role_name in array array['ledger_owner', 'ledger_fn', 'ledger_worker', 'ledger_operator', 'ledger_reader']
    loop
        if to_regrole(role_name) is null then
            raise exception 'role % does not exist; nothing was changed', role_name
                using hint = 'Whoever makes the roles of this cluster runs the output of ledger db sql --part roles.';
        end if;
    end loop;

    foreach role_name in array array['ledger_owner', 'ledger_fn']
    loop
        if not pg_has_role(current_user, role_name, privilege) then
            begin
                execute format('grant %I to %I', role_name, current_user);
            exception
                when insufficient_privilege then
                    raise exception '% is not a member of %; nothing was changed', current_user, role_name
                        using hint = format(
                            'Whoever makes the roles of this cluster runs grant ledger_owner, ledger_fn to %I.',
                            current_user
                        );
            end;
        end if;
    end loop;
end;
$$;

alter schema ledger owner to ledger_owner;
alter table ledger.schema_version owner to ledger_owner;
comment on table ledger.schema_version is 'The revision this schema is at; kept by Alembic.';
comment on column ledger.schema_version.version_num is 'The revision.';
