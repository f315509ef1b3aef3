"""What PostgreSQL's catalog says about the schema ``mdm``, in a form that can be compared."""

from __future__ import annotations

from typing import Final, TypeAlias

from sqlalchemy import Connection, text

Catalog: TypeAlias = set[tuple[object, ...]]

VERSION_TABLE: Final = "jobqueue_version"
"""Left out: it is there in one of the ways to migrate only."""


def catalog(connection: Connection) -> Catalog:
    """Every column, constraint, index, enum label, trigger and storage option of ``mdm``, one tuple each."""
    found: Catalog = set()
    for what, query in _QUERIES.items():
        for row in connection.execute(text(query), {"version_table": VERSION_TABLE}):
            found.add((what, *row))
    return found


def difference(left: Catalog, right: Catalog) -> list[str]:
    """One line for each entry that only one of the two has; empty if they are equal."""
    lines = [f"- {entry}" for entry in left - right] + [f"+ {entry}" for entry in right - left]
    return sorted(lines, key=lambda line: (line[2:], line[0]))


_QUERIES: Final = {
    "column": """
        SELECT c.relname, row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum) AS position, a.attname,
               format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity::text, a.attgenerated::text,
               pg_get_expr(d.adbin, d.adrelid), collation_of.collname
          FROM pg_class c
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
          LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
          LEFT JOIN pg_collation collation_of ON collation_of.oid = a.attcollation
         WHERE c.relnamespace = 'mdm'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')
           AND c.relname <> :version_table
    """,
    "table": """
        SELECT c.relname, c.relkind::text, c.relpersistence::text,
               ARRAY(SELECT unnest(c.reloptions) ORDER BY 1)::text
          FROM pg_class c
         WHERE c.relnamespace = 'mdm'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S')
           AND c.relname <> :version_table
    """,
    "constraint": """
        SELECT c.relname, k.conname, k.contype::text, k.convalidated, pg_get_constraintdef(k.oid)
          FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
         WHERE c.relnamespace = 'mdm'::regnamespace AND c.relname <> :version_table
    """,
    "index": """
        SELECT c.relname, i.relname, x.indisvalid, pg_get_indexdef(i.oid)
          FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class c ON c.oid = x.indrelid
         WHERE c.relnamespace = 'mdm'::regnamespace AND c.relname <> :version_table
    """,
    "label": """
        SELECT t.typname, row_number() OVER (PARTITION BY t.oid ORDER BY e.enumsortorder), e.enumlabel
          FROM pg_enum e JOIN pg_type t ON t.oid = e.enumtypid
         WHERE t.typnamespace = 'mdm'::regnamespace
    """,
    "type": """
        SELECT t.typname, t.typtype::text FROM pg_type t
         WHERE t.typnamespace = 'mdm'::regnamespace AND t.typtype <> 'c' AND t.typcategory <> 'A'
    """,
    "trigger": """
        SELECT c.relname, t.tgname, pg_get_triggerdef(t.oid)
          FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
         WHERE c.relnamespace = 'mdm'::regnamespace AND NOT t.tgisinternal
    """,
    "function": """
        SELECT p.proname, pg_get_functiondef(p.oid) FROM pg_proc p
         WHERE p.pronamespace = 'mdm'::regnamespace AND p.prokind = 'f'
    """,
}
