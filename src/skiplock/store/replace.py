"""The SQL that puts the verbs in place of those of an earlier release, without taking away anything that was given.

CREATE OR REPLACE is enough while a function's parameters and answer stay what they were: it keeps the function itself,
who may call it, and the views that use it. It does not help in two cases, which an upgrade has all the time:

- Parameters have grown: that is another function to PostgreSQL, and a call with the older ones would still find the older.
- The answer has (a column more): refused, "cannot change return type of existing function".

Then the older one is set aside under another name, after everybody who might call it was given its successor, and dropped a
moment after the migration: nothing locks a function, so a worker of the previous release may just have looked it up, and
would find it gone ("cache lookup failed"; it happened once in 800 replacements under load). Nobody finds it any more by then.
"""

from __future__ import annotations

import re

from skiplock.store.schema import functions, quoted, render

_START = re.compile(r"^CREATE OR REPLACE FUNCTION skiplock\.(\w+)\s*\(", re.MULTILINE)
_TEXT, _BLOCK = "$skiplock_verb$", "$skiplock_verbs$"  # quotes that no file of ours holds
# A function that was set aside is called by its name, a blank and its number: ours have no blanks in their names.
_ASIDE = """SELECT p.oid::regprocedure::text AS signature FROM pg_proc p
WHERE p.pronamespace = to_regnamespace('{schema}') AND split_part(p.proname, ' ', 1) IN ({names}) AND p.proname ~ '^\\S+ \\d+$'"""
_DROP = """DO {block}
DECLARE
    v_aside text;
BEGIN
    FOR v_aside IN {aside} LOOP
        EXECUTE 'DROP FUNCTION ' || v_aside;
    END LOOP;
END {block};"""
_REPLACE = """DO {block}
DECLARE
    v_schema CONSTANT oid := to_regnamespace('{schema}');
    v_names CONSTANT text[] := ARRAY[{names}];
    -- What is there now. A function that is replaced gets another version of its row.
    v_oids CONSTANT oid[] := ARRAY(SELECT p.oid FROM pg_proc p WHERE p.pronamespace = v_schema);
    v_rows CONSTANT text[] := ARRAY(SELECT p.oid || ' ' || p.xmin FROM pg_proc p WHERE p.pronamespace = v_schema);
    v_name text;
    v_create text;
    v_older record;
    v_order text;
    v_users text;
BEGIN
    FOR v_name, v_create IN VALUES
{verbs}
    LOOP
        BEGIN
            EXECUTE v_create;
        EXCEPTION WHEN invalid_function_definition THEN
            FOR v_older IN SELECT p.oid, p.oid::regprocedure AS signature FROM pg_proc p
                           WHERE p.pronamespace = v_schema AND p.proname = v_name AND p.oid || ' ' || p.xmin = ANY (v_rows) LOOP
                EXECUTE format('ALTER FUNCTION %s RENAME TO %I', v_older.signature, v_name || ' ' || v_older.oid);
            END LOOP;
            EXECUTE v_create;
        END;
    END LOOP;
    -- Nobody but the owner may call a new one until told so (see functions_sql).
    FOR v_order IN SELECT format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', p.oid::regprocedure) FROM pg_proc p
                   WHERE p.pronamespace = v_schema AND p.proname = ANY (v_names) AND p.oid <> ALL (v_oids) LOOP
        EXECUTE v_order;
    END LOOP;
    -- The outgrown (of the same version as before) and those just set aside (of another): hand on who may call them.
    FOR v_older IN SELECT p.oid, p.xmin, p.oid::regprocedure AS signature, split_part(p.proname, ' ', 1) AS name, p.proowner, p.proacl
                   FROM pg_proc p
                   WHERE p.pronamespace = v_schema AND split_part(p.proname, ' ', 1) = ANY (v_names) AND p.oid = ANY (v_oids)
                     AND (p.oid || ' ' || p.xmin = ANY (v_rows)) = (strpos(p.proname, ' ') = 0) LOOP
        FOR v_order IN
            SELECT format('GRANT EXECUTE ON FUNCTION %s TO %s', n.oid::regprocedure,
                          CASE r.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(r.grantee)) END)
                   || CASE WHEN r.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
            FROM aclexplode(v_older.proacl) r, pg_proc n
            WHERE r.grantee <> v_older.proowner AND n.pronamespace = v_schema AND n.proname = v_older.name
              AND n.oid || ' ' || n.xmin <> ALL (v_rows)
        LOOP
            EXECUTE v_order;
        END LOOP;
        SELECT string_agg(DISTINCT replace(pg_describe_object(d.classid, d.objid, d.objsubid), 'rule _RETURN on ', ''), ', ')
        INTO v_users FROM pg_depend d WHERE d.refclassid = 'pg_proc'::regclass AND d.refobjid = v_older.oid;
        IF v_users IS NOT NULL THEN
            RAISE EXCEPTION 'function %.% changes, and is used by %', '{schema}', v_older.name, v_users USING ERRCODE = '2BP01';
        END IF;
        IF v_older.oid || ' ' || v_older.xmin = ANY (v_rows) THEN
            EXECUTE format('ALTER FUNCTION %s RENAME TO %I', v_older.signature, v_older.name || ' ' || v_older.oid);
        END IF;
    END LOOP;
END {block};"""


def verb_names() -> list[str]:
    """The names of all our functions."""
    return sorted({name for file in functions() for name in _START.findall(file.text)})


def functions_sql(schema: str, *, fresh: bool) -> str:
    """All verbs as one script. `fresh`: where none are, which is plainer to read.

    Nobody but the owner may call them until told so; `enqueue` runs with the owner's rights, so that a role with EXECUTE
    on it alone can produce jobs.
    """
    if fresh:
        ours = ", ".join(f"{quoted(schema)}.{name}" for name in verb_names())
        revoke = f"REVOKE ALL ON FUNCTION {ours} FROM PUBLIC;"
        return "\n".join([*(f"-- {file.name}\n{render(file.text, schema)}" for file in functions()), revoke])
    verbs = ",\n".join(f"        ('{name}', {_TEXT}{render(text, schema)}{_TEXT})" for name, text in _each())
    return _REPLACE.format(
        schema=quoted(schema), names=", ".join(f"'{name}'" for name in verb_names()), verbs=verbs, block=_BLOCK
    )


def aside_sql(schema: str) -> str:
    """Those that were set aside, one a row."""
    return _ASIDE.format(schema=quoted(schema), names=", ".join(f"'{name}'" for name in verb_names()))


def drop_aside_sql(schema: str) -> str:
    """What drops them. In a later transaction than that of `functions_sql`."""
    return _DROP.format(aside=aside_sql(schema), block=_BLOCK)


def _each() -> list[tuple[str, str]]:
    """Name and text of each function, in order."""
    found = []
    for file in functions():
        starts = list(_START.finditer(file.text))
        ends = [start.start() for start in starts[1:]] + [len(file.text)]
        found += [(start[1], file.text[start.start() : end].rstrip()) for start, end in zip(starts, ends, strict=True)]
    return found
