-- What the schema consists of: an object's name, and the facts that make it what it is. Every major version of Postgres
-- answers alike.
--
-- Grants to PUBLIC are another check's, an owner has its rights anyway, and MAINTAIN came with PostgreSQL 17. How a view
-- or an expression is written down has changed in parentheses, blanks and qualifiers alone, so a digest leaves them out.

with ours as (
    select n.oid from pg_namespace as n where n.nspname = 'ledger'
),

acl as (
    select 'pg_namespace' as class, n.oid, n.nspowner as owner, coalesce(n.nspacl, acldefault('n', n.nspowner)) as acl
    from pg_namespace as n
    join ours as o on o.oid = n.oid
    union all
    select 'pg_proc', p.oid, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner))
    from pg_proc as p
    join ours as o on o.oid = p.pronamespace
    union all
    select
        'pg_class', c.oid, c.relowner,
        coalesce(c.relacl, acldefault(case c.relkind when 'S' then 's' else 'r' end::"char", c.relowner))
    from pg_class as c
    join ours as o on o.oid = c.relnamespace
),

granted as (
    select
        a.class,
        a.oid,
        a.owner::regrole::text as owner,
        array(
            select g.grantee::regrole::text || ' ' || lower(g.privilege_type)
            from aclexplode(a.acl) as g
            where g.grantee not in (0, a.owner) and g.privilege_type <> 'MAINTAIN'
            order by 1
        ) as grants
    from acl as a
),

columns as (
    select
        c.oid,
        array_agg(
            concat_ws(
                ' ',
                a.attname,
                format_type(a.atttypid, a.atttypmod),
                'collate ' || nullif(l.collname, 'default'),
                case when a.attnotnull then 'not null' end,
                'default ' || pg_get_expr(d.adbin, d.adrelid),
                'identity ' || nullif(a.attidentity::text, ''),
                'granted ' || a.attacl::text
            )
            order by a.attnum
        ) as columns
    from pg_class as c
    join ours as o on o.oid = c.relnamespace
    join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    left join pg_collation as l on l.oid = a.attcollation
    left join pg_attrdef as d on d.adrelid = c.oid and d.adnum = a.attnum
    group by c.oid
)

select 'schema ledger' as name, jsonb_build_object('owner', g.owner, 'grants', g.grants) as facts
from granted as g
where g.class = 'pg_namespace'
union all
select
    'function ' || p.oid::regprocedure,
    jsonb_build_object(
        'owner', g.owner,
        'grants', g.grants,
        'arguments', pg_get_function_arguments(p.oid),
        'returns', pg_get_function_result(p.oid),
        'language', l.lanname,
        'definer', p.prosecdef,
        'volatility', p.provolatile,
        'settings', p.proconfig,
        'body', left(encode(sha256(convert_to(
            p.prosrc || coalesce(
                regexp_replace(pg_get_function_sqlbody(p.oid), '[\s()]|\m\w+\.(?=\w)', '', 'g'), ''
            ),
            'UTF8'
        )), 'hex'), 16)
    )
from pg_proc as p
join granted as g on g.class = 'pg_proc' and g.oid = p.oid
join pg_language as l on l.oid = p.prolang
union all
select
    'table ' || c.oid::regclass,
    jsonb_build_object(
        'owner', g.owner,
        'grants', g.grants,
        'columns', k.columns,
        'persistence', c.relpersistence,
        'row_security', c.relrowsecurity,
        'options', array(select unnest(c.reloptions) order by 1)
    )
from pg_class as c
join granted as g on g.class = 'pg_class' and g.oid = c.oid
left join columns as k on k.oid = c.oid
where c.relkind in ('r', 'p')
union all
select
    'view ' || c.oid::regclass,
    jsonb_build_object(
        'owner', g.owner,
        'grants', g.grants,
        'columns', k.columns,
        'options', c.reloptions,
        'body', left(encode(sha256(convert_to(
            regexp_replace(pg_get_viewdef(c.oid), '[\s()]|\m\w+\.(?=\w)', '', 'g'), 'UTF8'
        )), 'hex'), 16)
    )
from pg_class as c
join granted as g on g.class = 'pg_class' and g.oid = c.oid
left join columns as k on k.oid = c.oid
where c.relkind in ('v', 'm')
union all
select
    'sequence ' || c.oid::regclass,
    jsonb_build_object(
        'owner', g.owner,
        'grants', g.grants,
        'type', s.seqtypid::regtype,
        'start', s.seqstart,
        'increment', s.seqincrement,
        'max', s.seqmax,
        'cache', s.seqcache,
        'cycle', s.seqcycle
    )
from pg_sequence as s
join pg_class as c on c.oid = s.seqrelid
join granted as g on g.class = 'pg_class' and g.oid = c.oid
union all
select
    'type ' || t.oid::regtype,
    jsonb_build_object(
        'owner', t.typowner::regrole,
        'of', case when t.typtype = 'd' then array[format_type(t.typbasetype, t.typtypmod)] else k.columns end
    )
from pg_type as t
join ours as o on o.oid = t.typnamespace
left join pg_class as c on c.oid = t.typrelid
left join columns as k on k.oid = c.oid
where c.relkind = 'c' or t.typtype = 'd'
union all
select
    'constraint ' || k.conname || ' on '
        || coalesce(nullif(k.conrelid, 0)::regclass::text, k.contypid::regtype::text),
    jsonb_build_object('definition', pg_get_constraintdef(k.oid), 'validated', k.convalidated)
from pg_constraint as k
join ours as o on o.oid = k.connamespace
where k.contype not in ('n', 't')
union all
select 'index ' || i.indexrelid::regclass, jsonb_build_object('definition', pg_get_indexdef(i.indexrelid))
from pg_index as i
join pg_class as c on c.oid = i.indexrelid
join ours as o on o.oid = c.relnamespace
union all
select
    'trigger ' || t.tgname || ' on ' || t.tgrelid::regclass,
    jsonb_build_object('definition', pg_get_triggerdef(t.oid), 'enabled', t.tgenabled)
from pg_trigger as t
join pg_class as c on c.oid = t.tgrelid
join ours as o on o.oid = c.relnamespace
where not t.tgisinternal
union all
select
    'rows of ledger.transition',
    jsonb_build_object('digest', left(encode(sha256(convert_to(
        string_agg(t::text, ' ' order by t::text collate "C"), 'UTF8'
    )), 'hex'), 16))
from ledger.transition as t;
